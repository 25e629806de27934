package rings

import (
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
)

// What an answer can fail with, other than the caller's context or a fault of the server. Errors wrap one of these and say
// more.
var (
	// ErrInvalid: the question makes no sense; the error is an [*InvalidError].
	ErrInvalid = errors.New("invalid question")
	// ErrRingNotFound: there is no such ring.
	ErrRingNotFound = errors.New("no such ring")
	// ErrNotSharded: no ring in question assigns the object.
	ErrNotSharded = errors.New("not sharded")
	// ErrOwnerNeeded: the object is where its owner is, and the question does not name the owner.
	ErrOwnerNeeded = errors.New("owner needed")
	// ErrNotReadable: the answer needs objects that the server has no right to read.
	ErrNotReadable = errors.New("not readable")
	// ErrNotReady: not everything that answers follow from has been read yet.
	ErrNotReady = errors.New("not ready")
)

// InvalidError describes what is wrong with a question. It wraps [ErrInvalid].
type InvalidError struct {
	// Violations has at least one entry. A field is its path in the request, such as "object.namespace". The description states
	// what is wrong and what would be right.
	Violations []*errdetails.BadRequest_FieldViolation
}

// Invalid returns an [*InvalidError] about one field.
func Invalid(field, description string) error {
	return &InvalidError{Violations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: description}}}
}

// Error implements error.
func (e *InvalidError) Error() string {
	all := make([]string, 0, len(e.Violations))
	for _, v := range e.Violations {
		all = append(all, v.GetField()+" "+v.GetDescription())
	}

	return strings.Join(all, "; ")
}

// Unwrap returns [ErrInvalid].
func (*InvalidError) Unwrap() error { return ErrInvalid }
