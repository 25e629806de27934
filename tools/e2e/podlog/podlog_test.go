package podlog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/tools/e2e/podlog"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// kubelet serves pods and their logs, as an API server does.
type kubelet struct {
	mu   sync.Mutex
	pods map[string]*corev1.Pod
	// logs are what each answer for a log has: the first call gets the first one, and later calls the last.
	logs  map[string][]string
	calls map[string]int
	// open are logs that go on after what they have.
	open map[string]bool
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()

	name := r.PathValue("name")
	w.Header().Set("Content-Type", "application/json")

	switch pod := k.pods[name]; {
	case name == "":
		list := corev1.PodList{}

		list.APIVersion, list.Kind = "v1", "PodList"
		for _, p := range k.pods {
			list.Items = append(list.Items, *p)
		}

		_ = json.NewEncoder(w).Encode(list)
	case r.PathValue("what") == "log":
		call := min(k.calls[name], len(k.logs[name])-1)
		k.calls[name]++
		fmt.Fprint(w, k.logs[name][call])
		_ = http.NewResponseController(w).Flush()

		if k.open[name] {
			k.mu.Unlock()
			<-r.Context().Done()
			k.mu.Lock()
		}
	case pod == nil:
		http.NotFound(w, r)
	default:
		_ = json.NewEncoder(w).Encode(pod)
	}
}

// run adds a running pod.
func (k *kubelet) run(name, node string, logs ...string) {
	pod := &corev1.Pod{}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	pod.Namespace, pod.Name, pod.UID, pod.Spec.NodeName = "n", name, types.UID(name), node
	k.pods[name], k.logs[name] = pod, logs
}

func (k *kubelet) remove(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, name)
}

func start(t *testing.T, k *kubelet) *podlog.Collector {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })

	mux := http.NewServeMux()
	mux.Handle("GET /api/v1/namespaces/n/pods", k)
	mux.Handle("GET /api/v1/namespaces/n/pods/{name}", k)
	mux.Handle("GET /api/v1/namespaces/n/pods/{name}/{what}", k)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	clients, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: server.URL, QPS: -1},
		&http.Client{Transport: transport})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	collector := podlog.Follow(ctx, clients, "n")
	t.Cleanup(func() { cancel(); collector.Wait() })

	return collector
}

func newKubelet() *kubelet {
	return &kubelet{pods: map[string]*corev1.Pod{}, logs: map[string][]string{}, calls: map[string]int{},
		open: map[string]bool{}}
}

// noon is when the nodes' monotonic clocks began.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// line is one line of history at so many milliseconds after noon.
func line(event, shard string, sequence, ms int) string {
	at := noon.Add(time.Duration(ms) * time.Millisecond)

	return fmt.Sprintf(`{"event":%q,"sequence":%d,"process":1,"shard":%q,"kind":"Website","namespace":"n","name":"x","uid":"u","time":%q,"monotonic":%d}`+"\n",
		event, sequence, shard, at.Format(time.RFC3339Nano), time.Duration(ms)*time.Millisecond)
}

func byName(s history.Span) string { return s.Name }

// spans waits until there are so many, all of them ended by what was written or by the end of their log.
func spans(t *testing.T, c *podlog.Collector, count int) []history.Span {
	t.Helper()

	var found []history.Span
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		var err error

		found, err = c.Spans()
		require.NoError(t, err)
		require.Len(t, found, count)
	}, 20*time.Second, 10*time.Millisecond)

	return found
}

func TestSpansOfSeveralPods(t *testing.T) {
	k := newKubelet()
	k.open["a"], k.open["b"], k.open["c"] = true, true, true
	k.run("a", "node", "{\"level\":\"info\"}\n"+line("start", "a", 1, 10)+"a word\n"+line("end", "a", 1, 20))
	k.run("b", "node", line("start", "b", 1, 20)+line("end", "b", 1, 30))
	k.run("c", "another", line("start", "c", 1, 29)+line("end", "c", 1, 40))
	c := start(t, k)

	found := spans(t, c, 3)
	require.Empty(t, history.Overlaps(found[:2], byName), "one after the other")
	require.Len(t, history.Overlaps(found[1:], byName), 1)
	require.Equal(t, 10*time.Millisecond, found[0].End-found[0].Start)
	require.Equal(t, time.Duration(noon.Add(10*time.Millisecond).UnixNano()), found[0].Start)
}

func TestALogThatBreaksOffIsReadOn(t *testing.T) {
	k := newKubelet()
	first := line("start", "a", 1, 10) + line("end", "a", 1, 20)
	k.run("a", "node", first, first+line("start", "a", 2, 30)+line("end", "a", 2, 40))
	c := start(t, k)

	require.Equal(t, 10*time.Millisecond, spans(t, c, 2)[1].End-spans(t, c, 2)[1].Start)
}

func TestAReconcileOfAPodThatIsGoneHasEnded(t *testing.T) {
	k := newKubelet()
	k.run("a", "node", line("start", "a", 1, 10))
	c := start(t, k)
	spans(t, c, 1)
	k.remove("a")

	require.EventuallyWithT(t, func(t *assert.CollectT) {
		first, err := c.Spans()
		require.NoError(t, err)
		second, err := c.Spans()
		require.NoError(t, err)
		require.Equal(t, first[0].End, second[0].End, "it grows no more")
	}, 20*time.Second, 10*time.Millisecond)
}

func TestAContainerThatIsStartedAgain(t *testing.T) {
	k := newKubelet()
	k.run("a", "node", "starting, at 1\n"+line("start", "a", 1, 10),
		"starting, at 2\n"+line("start", "a", 1, 500)+line("end", "a", 1, 520))
	c := start(t, k)

	found := spans(t, c, 2)
	first, second := found[1], found[0]
	require.Equal(t, 20*time.Millisecond, second.End-second.Start)
	require.Equal(t, second.Start, first.End, "the first one is dead when the next one works")
}
