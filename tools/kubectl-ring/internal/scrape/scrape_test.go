package scrape_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/scrape"
	"github.com/clusterring/clusterring/tools/lab/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m)) }

// handler serves a native histogram as programs do, to those that have the token.
func handler(token string, seen *http.Header) http.Handler {
	registry := prometheus.NewRegistry()
	waits := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "waits", Help: "Waits.", Buckets: []float64{1}, NativeHistogramBucketFactor: 1.1})
	registry.MustRegister(waits)
	waits.Observe(0.5)

	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*seen = r.Header

		if r.URL.Path != "/metrics" || token != "" && r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "Authorization denied", http.StatusForbidden)
			return
		}

		metrics.ServeHTTP(w, r)
	})
}

func read(t *testing.T, targets []scrape.Target) scrape.Result {
	t.Helper()
	results := scrape.Reader{Clock: clock.RealClock{}}.Read(t.Context(), targets)
	require.Len(t, results, len(targets))

	return results[0]
}

// whole returns an error with its advice.
func whole(err error) string {
	var b strings.Builder
	failure.Print(&b, err)

	return b.String()
}

// TestURLs reads a page over HTTP and HTTPS, with and without what the server asks for.
func TestURLs(t *testing.T) {
	var seen http.Header

	server := httptest.NewUnstartedServer(handler("secret", &seen))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it reports clients that do not trust it
	server.StartTLS()

	defer server.Close()

	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))

		return path
	}
	ca := file("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	token := file("token", "secret\n")

	for name, c := range map[string]struct {
		trust scrape.Trust
		want  string // of the error; empty: none
	}{
		"verified, with the token":         {scrape.Trust{CAFile: ca, TokenFile: token}, ""},
		"any certificate":                  {scrape.Trust{Insecure: true, TokenFile: token}, ""}, // on this machine
		"verified for a name":              {scrape.Trust{CAFile: ca, TokenFile: token, ServerName: "example.com"}, ""},
		"another name":                     {scrape.Trust{CAFile: ca, TokenFile: token, ServerName: "other.example"}, "--server-name"},
		"not verified":                     {scrape.Trust{TokenFile: token}, "verify the server with --ca-file"},
		"without the token":                {scrape.Trust{CAFile: ca}, "the metrics are protected"},
		"a token with a control character": {scrape.Trust{CAFile: ca, TokenFile: file("bad", "a\nb")}, "holds no bearer token"},
	} {
		t.Run(name, func(t *testing.T) {
			targets, done, err := scrape.URLs([]string{server.URL}, c.trust)
			if err == nil {
				defer done()

				result := read(t, targets)
				if err = result.Err; err == nil {
					require.NotNil(t, result.Page["waits"].GetMetric()[0].GetHistogram().Schema, "native histograms are asked for")
				}
			}

			if c.want == "" {
				require.NoError(t, err)
				return
			}

			require.ErrorContains(t, err, "")
			require.Contains(t, whole(err), c.want)
		})
	}

	plain := httptest.NewServer(handler("", &seen))
	defer plain.Close()

	targets, done, err := scrape.URLs([]string{plain.URL}, scrape.Trust{UserAgent: "me"})
	require.NoError(t, err)

	defer done()
	require.NoError(t, read(t, targets).Err)
	require.Empty(t, seen.Get("Authorization"))
	require.Equal(t, "me", seen.Get("User-Agent"))

	for url, want := range map[string]string{
		strings.Replace(plain.URL, "http", "https", 1):  "the server does not use TLS: use http://",
		strings.Replace(server.URL, "https", "http", 1): "use https",
		"http://127.0.0.1:1":                            "check the address",
	} {
		targets, done, err := scrape.URLs([]string{url}, scrape.Trust{})
		require.NoError(t, err)
		require.Contains(t, whole(read(t, targets).Err), want)
		done()
	}
}

// TestTokenGoesToVerifiedServersOnly verifies that a token does not go to another machine without TLS that is verified.
func TestTokenGoesToVerifiedServersOnly(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))

	for url, c := range map[string]struct{ insecure, ok bool }{
		"http://localhost:1": {false, true}, "http://[::1]:1": {false, true}, "https://192.0.2.7": {false, true}, "https://127.0.0.1": {true, true},
		"http://192.0.2.7": {false, false}, "http://localhost.example": {false, false}, "https://192.0.2.8": {true, false},
	} {
		_, _, err := scrape.URLs([]string{url}, scrape.Trust{TokenFile: token, Insecure: c.insecure})
		require.Equal(t, c.ok, err == nil, url)
	}
}

// TestTimeLimit verifies that a server that does not answer is given up.
func TestTimeLimit(t *testing.T) {
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))

	defer server.Close()
	defer close(over)

	targets, done, err := scrape.URLs([]string{server.URL}, scrape.Trust{})
	require.NoError(t, err)

	defer done()

	result := scrape.Reader{Timeout: 50 * time.Millisecond, Clock: clock.RealClock{}}.Read(t.Context(), targets)[0]
	require.ErrorContains(t, result.Err, "no answer within 50ms")
	require.Contains(t, whole(result.Err), "longer --request-timeout")
}

// address returns an address of this machine that is not that of the loopback interface, to which the API server connects nothing.
func address(t *testing.T) string {
	t.Helper()

	all, err := net.InterfaceAddrs()
	require.NoError(t, err)

	for _, a := range all {
		if network, ok := a.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}

	return "0.0.0.0" // this machine, without a network
}

// TestPods reads a page through the real API server.
func TestPods(t *testing.T) {
	plane := localplane.Shared(t)
	namespace := plane.Namespace(t)

	var seen http.Header

	listener, err := net.Listen("tcp", net.JoinHostPort(address(t), "0"))
	require.NoError(t, err)

	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler("", &seen), ReadHeaderTimeout: time.Minute}}
	server.Start()

	defer server.Close()

	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)

	number, err := strconv.ParseInt(port, 10, 32)
	require.NoError(t, err)

	create := func(name string, ready corev1.ConditionStatus) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "x"}},
			Spec: corev1.PodSpec{AutomountServiceAccountToken: new(false), Containers: []corev1.Container{
				{Name: "side", Image: "side"},
				{
					Name: "manager", Image: "manager", Ports: []corev1.ContainerPort{{Name: "http-metrics", ContainerPort: int32(number)}}, //nolint:gosec // a port
					Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("1Gi"),
					}},
				},
			}},
		}
		require.NoError(t, plane.Client.Create(t.Context(), pod))

		pod.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: host, PodIPs: []corev1.PodIP{{IP: host}}, HostIP: host,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		}
		require.NoError(t, plane.Client.Status().Update(t.Context(), pod))
	}

	pods := scrape.Pods{Namespace: namespace, Selector: "app=x", Port: "http-metrics", Path: "/metrics", Scheme: "http"}
	require.NoError(t, pods.Validate())

	_, err = pods.Find(t.Context(), plane.Config)
	require.ErrorContains(t, err, "no pod in namespace "+namespace)

	create("starts", corev1.ConditionFalse)

	_, err = pods.Find(t.Context(), plane.Config)
	require.ErrorContains(t, err, "none is ready")

	create("runs", corev1.ConditionTrue)

	targets, err := pods.Find(t.Context(), plane.Config)
	require.NoError(t, err)
	require.Len(t, targets, 1)
	require.Equal(t, "runs", targets[0].Name)
	require.InDelta(t, 1.5, targets[0].CPULimit, 1e-9)
	require.InDelta(t, 1<<30, targets[0].MemoryLimit, 1e-9)

	result := read(t, targets)
	require.NoError(t, result.Err)
	require.NotNil(t, result.Page["waits"].GetMetric()[0].GetHistogram().Schema, "native histograms come through")
	require.Empty(t, seen.Get("Authorization"), "the credentials are for the API server alone")

	for name, c := range map[string]struct {
		change func(*scrape.Pods)
		want   []string
	}{
		"a number of another container": {func(p *scrape.Pods) { p.Port = "1" }, []string{"the API server answered 503", "check that the process serves its metrics there"}},
		"a refusal of the pod":          {func(p *scrape.Pods) { p.Path = "/other" }, []string{"403 Forbidden: Authorization denied", "the metrics are protected"}},
		"TLS where there is none":       {func(p *scrape.Pods) { p.Scheme = "https" }, []string{"the API server answered"}},
	} {
		t.Run(name, func(t *testing.T) {
			other := pods
			c.change(&other)

			targets, err := other.Find(t.Context(), plane.Config)
			require.NoError(t, err)

			for _, want := range c.want {
				require.Contains(t, whole(read(t, targets).Err), want)
			}
		})
	}

	other := pods
	other.Port = "nothing"
	_, err = other.Find(t.Context(), plane.Config)
	require.ErrorContains(t, err, "pod runs has no port named nothing")

	permissions(t, plane, pods)
}

// permissions verifies that errors name the permission that is missing, and that it is enough.
func permissions(t *testing.T, plane *localplane.Plane, pods scrape.Pods) {
	t.Helper()

	user := rest.CopyConfig(plane.Config)
	user.Impersonate.UserName = "reader-of-" + pods.Namespace

	_, err := pods.Find(t.Context(), user)
	require.ErrorContains(t, err, "forbidden")
	require.Contains(t, whole(err), fmt.Sprintf("kubectl create role read-metrics -n %s --verb=list --resource=pods", pods.Namespace))

	grant := func(rules ...rbacv1.PolicyRule) {
		name := strings.ReplaceAll(rules[0].Resources[0], "/", "-")
		require.NoError(t, plane.Client.Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: pods.Namespace, Name: name}, Rules: rules}))
		require.NoError(t, plane.Client.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pods.Namespace, Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user.Impersonate.UserName}},
		}))
	}
	grant(rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}})

	var targets []scrape.Target

	require.Eventually(t, func() bool {
		targets, err = pods.Find(t.Context(), user)
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)

	err = read(t, targets).Err
	require.ErrorContains(t, err, "the API server answered 403")
	require.Contains(t, whole(err), fmt.Sprintf("kubectl create role read-metrics -n %s --verb=get --resource=pods/proxy", pods.Namespace))

	grant(rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/proxy"}, Verbs: []string{"get"}})
	require.Eventually(t, func() bool { return read(t, targets).Err == nil }, 30*time.Second, 20*time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err = pods.Find(ctx, user)
	require.ErrorIs(t, err, context.Canceled)
}
