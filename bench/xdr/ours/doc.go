// Package ours has what cmd/xdrgen makes of the messages, while the tests run.
package ours
