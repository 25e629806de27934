// Package failure reports to the user what failed, where, and what to do.
//
// It reads the details of gRPC statuses: the reason and the field violations.
package failure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is an error with advice. Empty fields are not printed.
type Error struct {
	// What failed, in one sentence. Never empty.
	What string
	// Where it failed: the server.
	Where string
	// Details follow one per line, such as the fields of a request that the server refused.
	Details []string
	// Do is what the user can do.
	Do string
	// Cause is the wrapped error, for errors.Is and errors.As. Nil: there is none. It is not printed.
	Cause error
}

// Error returns what failed, and what to do.
func (f *Error) Error() string {
	if f.Do == "" {
		return f.What
	}

	return f.What + ": " + f.Do
}

// Unwrap returns the cause.
func (f *Error) Unwrap() error { return f.Cause }

// New returns an error with advice.
func New(do, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{What: err.Error(), Do: do, Cause: errors.Unwrap(err)}
}

// In adds a place in the input, such as "line 3", to an error. Nil stays nil.
func In(place string, err error) error {
	var f *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		located := *f
		located.What = place + ": " + f.What

		return &located
	default:
		return fmt.Errorf("%s: %w", place, err)
	}
}

// Of converts the error of a call to an [Error]. where describes the server. An error that is not a gRPC status, or
// that is an [Error] already, is returned unchanged.
func Of(err error, where string) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}

	if errors.Is(err, context.DeadlineExceeded) {
		err = status.FromContextError(context.DeadlineExceeded).Err()
	}

	st, ok := status.FromError(err)
	if !ok {
		return err //nolint:wrapcheck // returned unchanged
	}

	f := &Error{What: st.Message(), Where: where, Cause: err}
	reason := ""

	for _, detail := range st.Details() {
		switch detail := detail.(type) {
		case *errdetails.BadRequest:
			for _, v := range detail.GetFieldViolations() {
				f.Details = append(f.Details, v.GetField()+": "+v.GetDescription())
			}
		case *errdetails.ErrorInfo:
			reason = detail.GetReason()
		}
	}

	f.Where += ", which answered " + st.Code().String()
	if local(st) {
		f.Where = where
	}

	if reason != "" {
		f.Where += " (" + reason + ")"
	}

	f.Do = advice(st, reason)

	return f
}

// local reports whether the status does not come from the server.
func local(st *status.Status) bool {
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded:
		return true
	case codes.Unavailable:
		return unreachable(st.Message())
	default:
		return false
	}
}

// unreachable reports whether the message comes from the client library: there is no connection.
func unreachable(message string) bool {
	return strings.HasPrefix(message, "connection error") || strings.HasPrefix(message, "name resolver error") ||
		strings.HasPrefix(message, "error reading") || strings.HasPrefix(message, "last connection error") ||
		strings.HasPrefix(message, "no children to pick from")
}

// byReason maps reasons of ringquery to advice.
var byReason = map[string]string{
	"RING_NOT_FOUND":   "kubectl ring list names the rings",
	"OBJECT_NOT_FOUND": "check the name, and the namespace: -n",
	"OWNER_NEEDED":     "name the object that controls it: --owner TYPE/NAME",
	"LABELS_NEEDED":    "name the labels that it, or its owner, would have: --labels KEY=VALUE",
	"NOT_READABLE": "allow ringquery to read it, by a ClusterRole with the label " +
		"sharding.timebertt.dev/aggregate-to-ringquery: \"true\"",
}

// advice returns advice for a status. Empty: there is none.
func advice(st *status.Status, reason string) string {
	if known := byReason[reason]; known != "" {
		return known
	}

	message := st.Message()
	switch st.Code() {
	case codes.Unauthenticated:
		return "the server requires a token; check that you may create tokens of the service " +
			"account (--service-account). " +
			"A token is sent to an --endpoint on another machine only with TLS and only if the server is verified"
	case codes.PermissionDenied:
		return "name an account that may, with --service-account, or request the ClusterRole " +
			"clusterring:diagnostics-viewer for it or, for one ring, permission to get clusterrings/diagnostics with its name"
	case codes.Unavailable:
		return unavailable(message)
	case codes.Aborted:
		return "repeat the command; a larger --chunk-size results in fewer pages"
	case codes.ResourceExhausted:
		return "request less at a time: a smaller --chunk-size or fewer objects"
	case codes.DeadlineExceeded:
		return "try again with a longer --request-timeout, or 0 for none"
	case codes.Unimplemented:
		return "the server is older than this program, or it is not ringquery: update it, or check --endpoint"
	case codes.Internal:
		return "look at the log of the server"
	default:
		return ""
	}
}

func unavailable(message string) string {
	switch {
	case strings.Contains(message, "x509:"):
		return "verify the server with --ca-file or, if you trust the connection, use --insecure-skip-tls-verify"
	case strings.Contains(message, "first record does not look like a TLS handshake"):
		return "the server does not use TLS: use --plaintext, or check --endpoint"
	case strings.Contains(message, "error reading server preface"):
		return "the server uses TLS, or is not a gRPC server: omit --plaintext, or check --endpoint"
	case unreachable(message):
		return "check that ringquery runs and can be reached: kubectl get pods -A -l app.kubernetes.io/name=ringquery"
	default:
		return "try again in a moment"
	}
}

// Print writes an error for people: one line with the error, then indented details.
func Print(w io.Writer, err error) {
	var f *Error
	if !errors.As(err, &f) {
		fmt.Fprintf(w, "error: %s\n", Clean(err.Error()))
		return
	}
	fmt.Fprintf(w, "error: %s\n", Clean(f.What))

	for _, detail := range f.Details {
		fmt.Fprintf(w, "  %s\n", Clean(detail))
	}

	if f.Where != "" {
		fmt.Fprintf(w, "  asked: %s\n", Clean(f.Where))
	}

	if f.Do != "" {
		fmt.Fprintf(w, "  to do: %s\n", Clean(f.Do))
	}
}

// Clean makes text from other sources safe for a terminal: line ends and tabs become spaces. Other control characters,
// and characters that are invisible or reorder others, become question marks.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
			return '?'
		default:
			return r
		}
	}, text)
}
