package xdr

import (
	"errors"
	"fmt"
)

// A CheckError says that a value cannot be encoded, or that no peer would accept the encoding, because the value
// exceeds the limits of its type. Generated Check methods return it.
type CheckError struct {
	Field string // which part, such as List[3].Name; "" for the value itself
	What  string // what is wrong with it
}

func (e *CheckError) Error() string {
	if e.Field == "" {
		return "xdr: " + e.What
	}
	return "xdr: " + e.Field + ": " + e.What
}

// CheckLen returns a [*CheckError] if n, the number of bytes or elements, exceeds max.
func CheckLen(n int, max uint32) error {
	if uint64(n) <= uint64(max) {
		return nil
	}
	return &CheckError{"", fmt.Sprintf("length is %d, limit is %d", n, max)}
}

// Undefined returns the [*CheckError] for an undefined value of item, such as the name of an enumeration. RFC 4506
// section 4.3.
func Undefined(item string, value int64) error {
	return &CheckError{"", fmt.Sprintf("%s is %d, which is not defined", item, value)}
}

// InField converts the [*CheckError] of a field's value to one of the structure. It returns other errors unchanged.
func InField(field string, err error) error {
	var e *CheckError
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Field == "":
	case e.Field[0] == '[':
		field += e.Field
	default:
		field += "." + e.Field
	}
	return &CheckError{field, e.What}
}

// InElement is [InField] for element i of an array, which may itself be a field.
func InElement(field string, i int, err error) error {
	return InField(fmt.Sprintf("%s[%d]", field, i), err)
}
