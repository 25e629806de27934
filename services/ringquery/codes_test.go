package ringquery_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/api"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// TestClientsSeeEveryDocumentedCode lets a real server fail with every code that the .proto file documents, and with no other.
func TestClientsSeeEveryDocumentedCode(t *testing.T) {
	p := startProxy(t)
	s := startServer(t, "--kubeconfig", p.kubeconfig, "--grpc-max-request-bytes", "65536")
	s.grant()
	ring, ns := s.makeRing(configMaps())
	s.configMap(ns, "x", nil)
	s.configMap(ns, "y", nil)

	strict := startServer(t, "--authentication", "kubernetes")

	getRing := func(s pb.DiagnosticsServiceClient, ctx context.Context, name string) error {
		_, err := s.GetRing(ctx, &pb.GetRingRequest{Name: name})
		return err
	}
	watch := func(ctx context.Context) error {
		stream, err := s.WatchRing(ctx, &pb.WatchRingRequest{Name: ring})
		for err == nil {
			_, err = stream.Recv()
		}

		return err
	}

	documented := documentedCodes(t)

	service := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: contract.SystemNamespace, Name: "ringquery"}}

	for code, fail := range map[codes.Code]func() error{
		codes.InvalidArgument: func() error { return getRing(s, t.Context(), "No Name") },
		codes.Unauthenticated: func() error { return getRing(strict, t.Context(), ring) },
		codes.PermissionDenied: func() error {
			return getRing(strict, metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+s.tokenOf(service, pb.TokenAudience)), ring)
		},
		codes.NotFound: func() error { return getRing(s, t.Context(), "no-such-ring") },
		codes.FailedPrecondition: func() error {
			_, err := s.Locate(t.Context(), &pb.LocateRequest{Ring: ring, Object: byKind("Pod", "default", "x")})
			return err
		},
		codes.Aborted: func() error {
			req := &pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Namespace: ns, PageSize: 1}
			first, err := s.ListAssignments(t.Context(), req)
			require.NoError(t, err)
			p.answer(http.StatusGone, expired)

			req.PageToken = first.GetNextPageToken()
			_, err = s.ListAssignments(t.Context(), req)

			return err
		},
		codes.ResourceExhausted: func() error { return getRing(s, t.Context(), strings.Repeat("x", 100<<10)) },
		codes.Unavailable: func() error {
			return getRing(serve(t, &api.Service{Ready: func() error { return errors.New("not yet") }}), t.Context(), ring)
		},
		codes.Canceled: func() error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()

			return watch(ctx)
		},
		codes.DeadlineExceeded: func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()

			return watch(ctx)
		},
		codes.Internal: func() error {
			broken := &api.Service{
				Ready: func() error { return nil }, Rings: &rings.Rings{Reader: brokenReader{}}, Log: logr.Discard(),
			}

			return getRing(serve(t, broken), t.Context(), ring)
		},
	} {
		err := fail()
		require.Equal(t, code, status.Code(err), err)
		require.Contains(t, documented, code)
		delete(documented, code)

		switch code {
		case codes.Canceled, codes.DeadlineExceeded, codes.Internal, codes.ResourceExhausted:
			require.Empty(t, reason(err), err)
		default:
			require.NotEmpty(t, reason(err), err)
		}
	}
	require.Empty(t, documented, "these are documented, and this test does not produce them")
}

// documentedCodes returns the codes in the comment of the service.
func documentedCodes(t *testing.T) map[codes.Code]bool {
	t.Helper()

	text, err := os.ReadFile("../../proto/clusterring/diagnostics/v1alpha1/diagnostics_service.proto")
	require.NoError(t, err)

	found := map[codes.Code]bool{}

	for _, line := range regexp.MustCompile(`(?m)^// {3}- ([A-Z_, ]+):`).FindAllStringSubmatch(string(text), -1) {
		for name := range strings.SplitSeq(line[1], ", ") {
			var code codes.Code
			require.NoError(t, code.UnmarshalJSON([]byte(`"`+name+`"`)), name)
			found[code] = true
		}
	}

	return found
}

// serve serves a service that is not in a command, and returns a client of it.
func serve(t *testing.T, service *api.Service) pb.DiagnosticsServiceClient {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	server := grpc.NewServer()
	service.Register(server)

	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.Stop()
		require.NoError(t, <-done)
	})

	return pb.NewDiagnosticsServiceClient(conn)
}

// brokenReader is a cache that always fails.
type brokenReader struct{ client.Reader }

func (brokenReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("broken")
}
