package rings

import (
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
)

// Errors of answers, except those of the caller's context and internal errors. An error wraps one of these and adds details.
var (
	// ErrInvalid: the question is not valid. The error is an [*InvalidError].
	ErrInvalid = errors.New("invalid question")
	// ErrRingNotFound: there is no such ring.
	ErrRingNotFound = errors.New("no such ring")
	// ErrNotAdded: no ring in question shards the object.
	ErrNotAdded = errors.New("not sharded")
	// ErrOwnerNeeded: the object follows its owner, and the question does not name the owner.
	ErrOwnerNeeded = errors.New("owner needed")
	// ErrLabelsNeeded: the key of the object, or of its owner, is a label, or the ring selects objects by labels, the object does not exist, and the question contains no labels.
	ErrLabelsNeeded = errors.New("labels needed")
	// ErrNotReadable: the answer requires objects that the server may not read.
	ErrNotReadable = errors.New("not readable")
	// ErrNotReady: the caches of the server are not filled yet.
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
