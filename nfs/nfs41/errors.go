package nfs41

import "fmt"

// An Error is the error status of an operation. The operations after it in the COMPOUND have
// not been executed.
type Error struct {
	Op     string // as in OpName or CBOpName
	Status Status
}

func (e *Error) Error() string { return fmt.Sprintf("nfs41: %s: %v", e.Op, e.Status) }

// A BadReplyError is an invalid reply. The COMPOUND may have been executed.
type BadReplyError struct {
	Op     string // as in OpName or CBOpName
	Reason string
}

func (e *BadReplyError) Error() string {
	return fmt.Sprintf("nfs41: %s: bad reply: %s", e.Op, e.Reason)
}
