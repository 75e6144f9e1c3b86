// Package goxdr has what goxdr makes of the messages, while the tests run.
package goxdr
