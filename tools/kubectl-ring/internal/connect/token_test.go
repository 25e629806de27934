package connect_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/connect"
)

// TestTokenOfAnotherUser requests the token as the user whom the kubeconfig impersonates.
func TestTokenOfAnotherUser(t *testing.T) {
	c := newCluster(t)
	c.asUser()

	s := serve(t, "127.0.0.1:0")
	config := rest.CopyConfig(c.plane.Config)
	o := connect.Options{Namespace: c.ns, Endpoint: s.address, Plaintext: true}

	config.Impersonate.UserName = "system:serviceaccount:" + c.ns + ":person"
	require.NoError(t, call(t, o, config))

	token, _ := s.last()
	c.onlyForRingquery(token)

	config.Impersonate.UserName = "nobody"
	require.NoError(t, call(t, o, config), "the server may need no token")

	token, _ = s.last()
	require.Empty(t, token)
}

// TestTokenIsReplaced verifies that a token is replaced before it expires.
func TestTokenIsReplaced(t *testing.T) {
	c := newCluster(t)
	c.account("ringquery-reader")

	s := serve(t, "127.0.0.1:0")
	clk := testclock.NewFakePassiveClock(time.Unix(0, 0))
	o := connect.Options{Namespace: c.ns, Endpoint: s.address, Plaintext: true, Clock: clk}
	conn, err := connect.Dial(t.Context(), &o, c.plane.Config, nil)

	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()

	for _, age := range []time.Duration{0, 30*time.Minute - 1, 30 * time.Minute, 45 * time.Minute, time.Hour} {
		clk.SetTime(time.Unix(0, 0).Add(age))

		_, err := pb.NewDiagnosticsServiceClient(conn).ListRings(t.Context(), &pb.ListRingsRequest{})
		require.NoError(t, err)
	}
	require.Equal(t, s.tokens[0], s.tokens[1])
	require.NotEqual(t, s.tokens[1], s.tokens[2])
	require.Equal(t, s.tokens[2], s.tokens[3])
	require.NotEqual(t, s.tokens[3], s.tokens[4])
	c.onlyForRingquery(s.tokens[4])

	require.NoError(t, c.plane.Client.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "ringquery-reader"}}))
	clk.SetTime(time.Unix(0, 0).Add(2 * time.Hour))

	_, err = pb.NewDiagnosticsServiceClient(conn).ListRings(t.Context(), &pb.ListRingsRequest{})
	require.ErrorContains(t, err, "get a token of service account "+c.ns+"/ringquery-reader for ringquery")
}
