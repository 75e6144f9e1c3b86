// Package buildbarn has what buildbarn/go-xdr makes of the messages, while the tests run.
package buildbarn
