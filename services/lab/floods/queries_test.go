package floods_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	// largeObjects is how many objects with large metadata there are, and queriesOfThem how many queries about them run at
	// a time.
	largeObjects, queriesOfThem = 150, 16
	// queriesFromEach is how many queries each address of the attacker sends at a time, over one connection.
	queriesFromEach = 128
	// renames without names have 2 bytes each, and fill the largest request.
	renames = (320<<10 - 100) / 2
)

// ask connects to ringquery from an address.
func (h *flooded) ask(dialer *net.Dialer) *grpc.ClientConn {
	h.T.Helper()

	conn, err := grpc.NewClient(h.Queries, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	require.NoError(h.T, err)
	h.T.Cleanup(func() { _ = conn.Close() })

	return conn
}

// token creates a service account and returns a token of it for ringquery.
func (h *flooded) token(namespace string) string {
	h.T.Helper()

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "caller"}}
	require.NoError(h.T, h.Plane.Client.Create(h.T.Context(), account))

	token, err := h.Plane.Token(h.T.Context(), account.Namespace, account.Name, "ringquery")
	require.NoError(h.T, err)

	return token
}

// TestHostileQueries: callers send many large queries at a time, first with tokens that nobody has issued, and then
// with one that has no permission. Meanwhile, another address gets an answer.
func TestHostileQueries(t *testing.T) {
	h := begin(t)
	request := &pb.SimulateRequest{Ring: "made-up", CountObjects: true}

	for range renames {
		request.Rename = append(request.Rename, &pb.Rename{})
	}

	valid := h.token(h.Plane.Namespace(t))

	for what, token := range map[string]func(i, j int) string{
		"wrong tokens":                func(i, j int) string { return fmt.Sprintf("wrong-%d-%d", i, j) },
		"a token without permissions": func(int, int) string { return valid },
	} {
		var calls sync.WaitGroup

		for i := range addresses {
			client := pb.NewDiagnosticsServiceClient(h.ask(from(i)))

			for j := range queriesFromEach {
				calls.Go(func() {
					_, err := client.Simulate(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token(i, j)),
						request)
					if err == nil {
						t.Errorf("%s: permitted", what)
					}
				})
			}
		}

		other, err := healthpb.NewHealthClient(h.ask(&net.Dialer{})).Check(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, other.GetStatus())
		calls.Wait()
		t.Logf("%s: %d MiB", what, peakOf(t, h.Process("ringquery").PID())>>20)
	}

	_, err := pb.NewDiagnosticsServiceClient(h.ask(&net.Dialer{})).
		GetRing(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+valid),
			&pb.GetRingRequest{Name: "made-up"})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "others are still served")
	h.survived("made-up")
}

// patient returns nil for a query that has waited for its turn until the end: on a slow machine, there are too many.
func patient(err error) error {
	if status.Code(err) == codes.DeadlineExceeded {
		return nil
	}

	return err
}

// TestExpensiveQueries: a caller with permission asks for many large pages and counts of large objects at a time.
func TestExpensiveQueries(t *testing.T) {
	plane, ring := localplane.Shared(t), "expensive"
	namespace := newRing(t, plane, ring)

	each(t, largeObjects, func(i int) error {
		return plane.Client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("large-%03d", i),
			Annotations: map[string]string{"large": strings.Repeat("x", 250_000)},
		}})
	})

	h := begin(t)
	token := h.token(namespace)
	require.NoError(t, plane.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "clusterring:diagnostics-viewer"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "caller"}},
	}))

	ctx, client := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token),
		pb.NewDiagnosticsServiceClient(h.ask(&net.Dialer{}))
	require.Eventually(t, func() bool {
		res, err := client.GetRing(ctx, &pb.GetRingRequest{Name: ring, CountObjects: true})
		return err == nil && res.GetCounted()[0].GetObjects() >= largeObjects
	}, patience, interval)

	var calls errgroup.Group

	for i := range queriesOfThem {
		calls.Go(func() error {
			if i%2 == 0 {
				_, err := client.GetRing(ctx, &pb.GetRingRequest{Name: ring, CountObjects: true})
				return patient(err)
			}

			request, got := &pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", PageSize: 5000}, 0

			for {
				res, err := client.ListAssignments(ctx, request)
				if err != nil {
					return patient(err)
				}

				got += len(res.GetAssignments())

				if request.PageToken = res.GetNextPageToken(); request.GetPageToken() == "" {
					break
				}
			}

			if got < largeObjects {
				return fmt.Errorf("%d objects are missing", largeObjects-got)
			}

			return nil
		})
	}

	require.NoError(t, calls.Wait())
	h.survived(namespace)
}
