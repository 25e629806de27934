package api

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// TestEveryErrorHasACode finds all sentinels of the packages that answer queries, and fails if one is not in the table.
func TestEveryErrorHasACode(t *testing.T) {
	table, err := os.ReadFile("service.go")
	require.NoError(t, err)

	sentinels := exportedErrors(t, "rings")
	require.Contains(t, sentinels, "rings.ErrRingNotFound")

	for _, name := range sentinels {
		if name == "rings.ErrRejected" { // a request of this server's own making: a fault, unless a page token explains it
			continue
		}
		require.Containsf(t, string(table), "{"+name+", codes.", "%s has no status code", name)
	}
}

// exportedErrors returns the names of the variables of a package that begin with Err.
func exportedErrors(t *testing.T, pkg string) (names []string) {
	t.Helper()

	dir := "../" + pkg
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)

	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}

		file, err := parser.ParseFile(token.NewFileSet(), dir+"/"+e.Name(), nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Err") {
				names = append(names, pkg+"."+spec.Names[0].Name)
			}

			return true
		})
	}

	return names
}

// TestEveryCodeIsDocumented compares the table with the documentation in the .proto file, in both directions.
func TestEveryCodeIsDocumented(t *testing.T) {
	// These are not in the table, because they come from internal errors, from gRPC itself, and from authorization.
	used := []string{"INTERNAL", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED"}
	for _, o := range outcomes {
		used = append(used, protoName(o.code))
	}

	text, err := os.ReadFile("../../../proto/clusterring/diagnostics/v1alpha1/diagnostics_service.proto")
	require.NoError(t, err)

	var documented []string
	for _, line := range regexp.MustCompile(`(?m)^// {3}- ([A-Z_, ]+):`).FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, strings.Split(line[1], ", ")...)
	}

	slices.Sort(used)
	slices.Sort(documented)
	require.Equal(t, slices.Compact(used), documented)
}

// protoName returns the name of a code in .proto files.
func protoName(c codes.Code) string {
	if c == codes.Canceled {
		return "CANCELLED"
	}

	return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(c.String(), "${1}_${2}"))
}

func TestErrorsTellProgramsAndPeople(t *testing.T) {
	for _, c := range []struct {
		err     error
		code    codes.Code
		message string
		reason  string
	}{
		{rings.Invalid("object.name", "must be set"), codes.InvalidArgument, "object.name must be set", "INVALID"},
		{fmt.Errorf("%w: x", rings.ErrRingNotFound), codes.NotFound, "no such ring: x", "RING_NOT_FOUND"},
		{fmt.Errorf("%w: x", rings.ErrNotAdded), codes.FailedPrecondition, "not sharded: x", "NOT_SHARDED"},
		{fmt.Errorf("%w: x", rings.ErrOwnerNeeded), codes.FailedPrecondition, "owner needed: x", "OWNER_NEEDED"},
		{fmt.Errorf("%w: x", rings.ErrNotReadable), codes.FailedPrecondition, "not readable: x", "NOT_READABLE"},
		{fmt.Errorf("x: %w", rings.ErrForbidden), codes.FailedPrecondition, "x: not allowed", "NOT_READABLE"},
		{fmt.Errorf("x: %w", rings.ErrNotServed), codes.FailedPrecondition, "x: no such resource", "NOT_SERVED"},
		{fmt.Errorf("x: %w", rings.ErrNotFound), codes.NotFound, "x: no such object", "OBJECT_NOT_FOUND"},
		{fmt.Errorf("x: %w", rings.ErrExpired), codes.Aborted, "x: the list has expired", "PAGE_EXPIRED"},
		{fmt.Errorf("x: %w", rings.ErrUnavailable), codes.Unavailable, "x: the API server does not answer", "API_SERVER_UNAVAILABLE"},
		{&notReadyError{errors.New("caches")}, codes.Unavailable, "try again, or ask another server: caches", "NOT_READY"},
		{fmt.Errorf("read: %w", context.Canceled), codes.Canceled, "read: context canceled", ""},
		{fmt.Errorf("read: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "read: context deadline exceeded", ""},
	} {
		st, fault := statusOf(c.err)
		require.False(t, fault)
		require.Equal(t, c.code, st.Code(), c.err)
		require.Equal(t, c.message, st.Message())
		require.Equal(t, c.reason, reasonOf(st), c.err)
	}
}

// reasonOf returns the reason in a status.
func reasonOf(st *status.Status) string {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == ErrorDomain {
			return info.GetReason()
		}
	}

	return ""
}

// TestErrorThatIsAStatusStaysAsItIs covers the error with which a stream has ended.
func TestErrorThatIsAStatusStaysAsItIs(t *testing.T) {
	st, fault := statusOf(fmt.Errorf("send: %w", status.Error(codes.Unavailable, "transport is closing")))
	require.False(t, fault)
	require.Equal(t, codes.Unavailable, st.Code())
}

func TestFaultOfTheServerIsLoggedAndKeptToItself(t *testing.T) {
	var logged []string

	s := &Service{
		Ready: func() error { return nil },
		Log:   funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{}),
	}

	_, err := answer(t.Context(), s, func() (*pb.ListRingsResponse, error) { return nil, errors.New("the secret cause") })
	require.Equal(t, codes.Internal, status.Code(err))
	require.NotContains(t, err.Error(), "secret")
	require.Len(t, logged, 1)
	require.Contains(t, logged[0], "the secret cause")
}

func TestNothingIsAnsweredUntilReady(t *testing.T) {
	s := &Service{Ready: func() error { return errors.New("the caches are not filled yet") }}

	for name, call := range map[string]func() error{
		"ListRings": func() error { _, err := s.ListRings(t.Context(), &pb.ListRingsRequest{}); return err },
		"GetRing":   func() error { _, err := s.GetRing(t.Context(), &pb.GetRingRequest{}); return err },
		"Locate":    func() error { _, err := s.Locate(t.Context(), &pb.LocateRequest{}); return err },
		"LocateAll": func() error { return s.LocateAll(nil) },
		"WatchRing": func() error { return s.WatchRing(&pb.WatchRingRequest{}, &watching{ctx: t.Context()}) },
		"ListAssignments": func() error {
			_, err := s.ListAssignments(t.Context(), &pb.ListAssignmentsRequest{})
			return err
		},
		"Simulate": func() error { _, err := s.Simulate(t.Context(), &pb.SimulateRequest{}); return err },
	} {
		err := call()
		require.Equal(t, codes.Unavailable, status.Code(err), name)
		require.ErrorContains(t, err, "the caches are not filled yet")
	}
}

// watching is a stream for a call that is refused.
type watching struct {
	grpc.ServerStreamingServer[pb.WatchRingResponse]

	ctx context.Context //nolint:containedctx // that of the stream
}

func (w *watching) Context() context.Context { return w.ctx }
