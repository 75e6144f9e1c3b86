package nfs41

import "fmt"

// An Error is an operation that the peer executed and that failed. The operations
// behind it in its COMPOUND have not been executed.
type Error struct {
	Op     string // as in OpName or CBOpName
	Status Status
}

func (e *Error) Error() string { return fmt.Sprintf("nfs41: %s: %v", e.Op, e.Status) }

// A ReplyError is a reply that makes no sense. The COMPOUND may have been executed.
type ReplyError struct {
	Op     string // as in OpName or CBOpName, or the name of the procedure
	Reason string
}

func (e *ReplyError) Error() string { return fmt.Sprintf("nfs41: %s: bad reply: %s", e.Op, e.Reason) }
