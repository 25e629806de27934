package ringquery_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// serverName is the name for which kubectl ring verifies the certificate.
const serverName = "ringquery.sharding-system.svc"

// anonymous allows calls without a token, because these tests are about certificates.
var anonymous = []string{"--authentication", "none"}

// replicas are servers that create their certificate themselves, in the objects that deploy/base/ringquery allows them
// to write.
type replicas struct {
	t     *testing.T
	plane *localplane.Plane
	// anybody is the client of a user who has only the permissions of all users.
	anybody client.Client
	all     []*server
}

// newReplicas prepares a cluster without certificates. It starts no replica.
func newReplicas(t *testing.T) *replicas {
	t.Helper()

	r := &replicas{t: t, plane: localplane.Shared(t)}
	r.forget()
	t.Cleanup(r.forget)

	config := rest.CopyConfig(r.plane.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "anybody", Groups: []string{"system:authenticated"}}
	anybody, err := client.New(config, client.Options{})
	require.NoError(t, err)

	r.anybody = anybody

	return r
}

func emptySecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: contract.SystemNamespace, Name: "ringquery-tls"}}
}

func emptyConfigMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: contract.SystemNamespace, Name: "ringquery-ca"}}
}

// forget deletes the objects of the replicas.
func (r *replicas) forget() {
	for _, object := range []client.Object{emptySecret(), emptyConfigMap()} {
		require.NoError(r.t, client.IgnoreNotFound(r.plane.Client.Delete(context.WithoutCancel(r.t.Context()), object)))
	}
}

// read reads an object, unless it is not there.
func read[T client.Object](t *testing.T, from client.Client, object T) T {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(from.Get(t.Context(), client.ObjectKeyFromObject(object), object)))

	return object
}

func (r *replicas) secret() *corev1.Secret { return read(r.t, r.plane.Client, emptySecret()) }

// published returns the ConfigMap, read with the permissions of all users.
func (r *replicas) published() *corev1.ConfigMap { return read(r.t, r.anybody, emptyConfigMap()) }

// start adds replicas, which start at the same time, and waits until they are ready.
func (r *replicas) start(count int, args ...string) {
	r.t.Helper()

	var started []*server
	for range count {
		started = append(started, launch(r.t, append(anonymous, args...)...))
	}

	for _, s := range started {
		require.Eventually(r.t, func() bool {
			code, err := s.probe()
			return err == nil && code == http.StatusOK
		}, patience, interval)
		require.NoError(r.t, r.call(s), "who is ready can be verified")
		s.use(s.dial(r.trust()))
	}

	r.all = append(r.all, started...)
}

// trust verifies a server as kubectl ring does.
func (r *replicas) trust() credentials.TransportCredentials {
	r.t.Helper()

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(r.published().Data["ca.crt"]))

	return credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: serverName, MinVersion: tls.VersionTLS13})
}

// call makes a call over a new connection to a server, and verifies the server with the published CA certificates.
func (r *replicas) call(s *server) error {
	r.t.Helper()

	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(r.trust()))
	require.NoError(r.t, err)

	defer func() { _ = conn.Close() }()

	_, err = healthpb.NewHealthClient(conn).Check(r.t.Context(), &healthpb.HealthCheckRequest{})

	return err
}

// shown returns the certificate of a server without verifying it.
func (s *server) shown() *x509.Certificate {
	s.t.Helper()

	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", s.address, &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // looks at it, trusts nothing
		NextProtos:         []string{"h2"},
	})
	require.NoError(s.t, err)

	defer func() { _ = conn.Close() }()

	return conn.ConnectionState().PeerCertificates[0]
}

// agreed waits until every replica serves the certificate in the Secret and all users can verify it.
func (r *replicas) agreed(which func(*x509.Certificate) bool) {
	r.t.Helper()

	require.Eventually(r.t, func() bool {
		secret := r.secret()

		pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
		if err != nil || !which(pair.Leaf) || r.published().Data["ca.crt"] != string(secret.Data["ca.crt"]) {
			return false
		}

		for _, s := range r.all {
			if !s.shown().Equal(pair.Leaf) || r.call(s) != nil {
				return false
			}
		}

		return true
	}, patience, interval)
}

// count counts a text in the logs of all replicas.
func (r *replicas) count(text string) (count int) {
	for _, s := range r.all {
		count += strings.Count(s.log.String(), text)
	}

	return count
}

func TestReplicasMakeOneCertificateAndShowHowToVerifyIt(t *testing.T) {
	r := newReplicas(t)
	r.start(3)
	r.agreed(func(c *x509.Certificate) bool { return c.VerifyHostname(serverName) == nil })
	require.Equal(t, 1, r.count("Certificates renewed"), "one makes it, the others take it")

	published, stored := r.published().ResourceVersion, r.secret().ResourceVersion
	r.start(1)
	r.agreed(func(*x509.Certificate) bool { return true })
	require.Equal(t, stored, r.secret().ResourceVersion, "who comes later changes nothing")
	require.Equal(t, published, r.published().ResourceVersion)
}

// TestRotationDropsNothing rotates the certificate and the CA during calls and streams.
func TestRotationDropsNothing(t *testing.T) {
	r := newReplicas(t)
	// A new CA is published for a tenth of the lifetime of a certificate before it signs one.
	r.start(2, "--tls-cert-lifetime=40s", "--tls-ca-lifetime=120s")
	s := r.all[0]
	ring, namespace := s.makeRing(configMaps())
	stream, err := s.WatchRing(t.Context(), &pb.WatchRingRequest{Name: ring})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)

	// Calls over one connection.
	var (
		calls  atomic.Int64
		caller errgroup.Group
	)

	ctx, stop := context.WithCancel(t.Context())

	caller.Go(func() (err error) {
		for ; err == nil && ctx.Err() == nil; calls.Add(1) {
			_, err = s.GetRing(t.Context(), &pb.GetRingRequest{Name: ring})
		}

		return err
	})

	before, authorities := s.shown(), r.published().Data["ca.crt"]
	require.NoError(t, r.plane.Client.Delete(t.Context(), emptySecret()))

	// Calls over new connections, each verified with the CA certificates that are published at that moment.
	overlap := false
	require.NoError(t, wait.PollUntilContextTimeout(t.Context(), interval, patience, true,
		func(context.Context) (bool, error) {
			switched := true

			for _, s := range r.all {
				if err := r.call(s); err != nil {
					return false, err
				}

				switched = switched && !s.shown().Equal(before)
			}

			overlap = overlap || s.shown().Equal(before) && r.published().Data["ca.crt"] != authorities

			return switched, nil
		}))
	require.True(t, overlap, "the new authority was published before it signed")
	r.agreed(func(c *x509.Certificate) bool { return !c.Equal(before) })

	require.NoError(t, s.shard(ring, namespace, "a").Acquire(t.Context()))

	_, err = stream.Recv()
	require.NoError(t, err, "the stream was dropped")
	stop()
	require.NoError(t, caller.Wait())
	require.Positive(t, calls.Load())
}

func TestLostCertificateIsRestored(t *testing.T) {
	r := newReplicas(t)
	r.start(2)

	configMap := func(change func(*corev1.ConfigMap)) func() error {
		return func() error {
			m := r.published()
			change(m)

			return r.plane.Client.Update(t.Context(), m)
		}
	}

	for _, c := range []struct {
		what string
		lose func() error
		log  string
	}{
		{"ConfigMap deleted", func() error {
			return r.plane.Client.Delete(t.Context(), emptyConfigMap())
		}, "Authorities published"},
		{"ConfigMap edited", configMap(func(m *corev1.ConfigMap) { m.Data["ca.crt"] = "garbage" }),
			"Authorities published"},
		{"Secret deleted", func() error {
			return r.plane.Client.Delete(t.Context(), emptySecret())
		}, "there is no CA with its key"},
	} {
		t.Run(c.what, func(t *testing.T) {
			before := r.count(c.log)
			require.NoError(t, c.lose())
			require.Eventually(t, func() bool { return r.count(c.log) == before+1 }, patience, interval,
				"one of them restores it, and says so")
			r.agreed(func(*x509.Certificate) bool { return true })
		})
	}
}

// TestRestartFailsNoCall stops one of two servers, which has all connections. As with a Service, new connections lead
// to it until it is not ready, and a connection lasts until the server ends it.
func TestRestartFailsNoCall(t *testing.T) {
	r := newReplicas(t)
	r.start(2, "--shutdown-delay", "1s")
	leaving, staying := r.all[0], r.all[1]
	ring, _ := leaving.makeRing(configMaps())
	staying.waitRing(ring)

	var (
		service atomic.Pointer[server]
		dialed  atomic.Int64
	)
	service.Store(leaving)

	conn, err := grpc.NewClient("passthrough:///ringquery", grpc.WithTransportCredentials(r.trust()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			dialed.Add(1)
			return (&net.Dialer{}).DialContext(ctx, "tcp", service.Load().address)
		}))
	require.NoError(t, err)

	defer func() { _ = conn.Close() }()

	var callers errgroup.Group

	busy, stop := context.WithCancel(t.Context())

	for range 8 {
		callers.Go(func() (err error) {
			for err == nil && busy.Err() == nil {
				_, err = pb.NewDiagnosticsServiceClient(conn).GetRing(t.Context(), &pb.GetRingRequest{Name: ring})
			}

			return err
		})
	}

	leaving.cancel()
	require.Eventually(t, func() bool {
		code, err := leaving.probe()
		return err == nil && code != http.StatusOK
	}, patience, interval)
	require.NoError(t, r.call(leaving), "it answers those who do not know yet")
	service.Store(staying)
	require.Eventually(t, func() bool { return len(leaving.done) > 0 }, patience, interval)
	require.NoError(t, <-leaving.done)
	leaving.done = nil

	require.Eventually(t, func() bool { return dialed.Load() == 2 }, patience, interval, "the other one answers now")
	stop()
	require.NoError(t, callers.Wait(), "a call has failed")
}

// waitRing waits until the server knows the ring.
func (s *server) waitRing(name string) {
	s.t.Helper()

	require.Eventually(s.t, func() bool {
		_, err := s.GetRing(s.t.Context(), &pb.GetRingRequest{Name: name})
		return err == nil
	}, patience, interval)
}
