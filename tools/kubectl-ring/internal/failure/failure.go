// Package failure says what went wrong, where, and what to do about it, to the person at the terminal.
//
// It reads the details of gRPC's statuses: the reason for programs and the violations of fields.
package failure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is an error that a person can act on. Empty fields are left out when it is printed.
type Error struct {
	// What is the case, in one sentence. Never empty.
	What string
	// Where it is: the server that was asked, a file, a flag.
	Where string
	// Details follow one per line, such as the fields of a request that the server refused.
	Details []string
	// Do is what the person can do.
	Do string
	// Cause is the error beneath, for errors.Is and errors.As. Nil: there is none. It is not printed.
	Cause error
}

// Error returns what is the case, and what to do.
func (f *Error) Error() string {
	if f.Do == "" {
		return f.What
	}
	return f.What + ": " + f.Do
}

// Unwrap returns the cause.
func (f *Error) Unwrap() error { return f.Cause }

// New returns a failure with an advice.
func New(do, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{What: err.Error(), Do: do, Cause: errors.Unwrap(err)}
}

// In returns an error that says first where in the input it is, such as "line 3". Nil stays nil.
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

// Of returns the failure of a call to a server; where names the server, for a person. An error that is no gRPC status, or
// that is a failure already, is returned as it is.
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
		return err //nolint:wrapcheck // it is what was given
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

// local reports whether it was not the server that said so.
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

// unreachable reports whether a message is the client library's own: no connection came about.
func unreachable(message string) bool {
	return strings.HasPrefix(message, "connection error") || strings.HasPrefix(message, "name resolver error") ||
		strings.HasPrefix(message, "error reading") || strings.HasPrefix(message, "last connection error") ||
		strings.HasPrefix(message, "no children to pick from")
}

// byReason says what to do for some of the words that ringquery has for programs.
var byReason = map[string]string{
	"RING_NOT_FOUND":   "kubectl ring list names the rings",
	"OBJECT_NOT_FOUND": "check the name, and the namespace: -n",
	"OWNER_NEEDED":     "name the object that controls it: --owner TYPE/NAME",
	"NOT_READABLE":     "let ringquery read it: a ClusterRole with the label sharding.timebertt.dev/aggregate-to-ringquery: \"true\"",
}

// Advice says what to do about one of ringquery's words for programs. Empty: it does not know the word.
func Advice(reason string) string { return byReason[reason] }

// advice says what to do about a status. Empty: its message says it all.
func advice(st *status.Status, reason string) string {
	if known := Advice(reason); known != "" {
		return known
	}
	message := st.Message()
	switch st.Code() {
	case codes.Unauthenticated:
		return "the server wants a bearer token or a client certificate; check the user of your kubeconfig (kubectl auth whoami). " +
			"A token is never sent without TLS to another machine, nor to an --endpoint whose certificate is not verified"
	case codes.PermissionDenied:
		return "ask for the ClusterRole clusterring:diagnostics-viewer; for one ring, get on clusterrings/diagnostics with its name will do"
	case codes.Unavailable:
		return unavailable(message)
	case codes.Aborted:
		return "begin again; a larger --chunk-size takes fewer pages"
	case codes.ResourceExhausted:
		return "ask for less at once: a smaller --chunk-size, fewer objects"
	case codes.DeadlineExceeded:
		return "try again with a longer --request-timeout, or 0 for none"
	case codes.Unimplemented:
		return "the server is older than this program, or is not ringquery: update it, or check --endpoint"
	case codes.Internal:
		return "look at the log of the server"
	default:
		return ""
	}
}

func unavailable(message string) string {
	switch {
	case strings.Contains(message, "x509:"):
		return "verify the server with --ca-file, or, if you trust the way to it, use --insecure-skip-tls-verify"
	case strings.Contains(message, "first record does not look like a TLS handshake"):
		return "the server speaks without TLS: use --plaintext, or check --endpoint"
	case strings.Contains(message, "error reading server preface"):
		return "the server speaks with TLS, or not gRPC: leave out --plaintext, or check --endpoint"
	case unreachable(message):
		return "check that ringquery runs and can be reached: kubectl get pods -A -l app.kubernetes.io/name=ringquery"
	default:
		return "try again in a moment"
	}
}

// Print writes an error for a person: one line of what it is, then indented what else is known.
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

// Clean returns text that others wrote so that it cannot move the cursor or change colours: line ends become spaces, other
// control characters question marks.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return '?'
		default:
			return r
		}
	}, text)
}
