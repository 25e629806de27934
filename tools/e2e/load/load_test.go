package load_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/e2e/load"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// server assigns the first Website at once, the second when it is looked at, and refuses the third; after that all goes well. Whoever looks
// at a Website sees that the work on it is done, unless the server is slow.
type server struct {
	mu    sync.Mutex
	sites []*v1alpha1.Website
	slow  bool
}

func (s *server) setSlow(slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.slow = slow
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")

	if r.Method == http.MethodGet {
		for _, site := range s.sites {
			if strings.HasSuffix(r.URL.Path, "/"+site.Name) {
				site.Labels = labels()
				if !s.slow {
					site.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
				}

				_ = json.NewEncoder(w).Encode(site)
			}
		}

		return
	}

	site := &v1alpha1.Website{}
	_ = json.NewDecoder(r.Body).Decode(site)

	s.sites = append(s.sites, site)
	switch len(s.sites) {
	case 2:
	case 3:
		http.Error(w, "no room", http.StatusInsufficientStorage)
		return
	default:
		site.Labels = labels()
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(site)
}

func labels() map[string]string { return map[string]string{contract.ShardLabel("ring"): "a"} }

func connect(t *testing.T, behind *server) client.Client {
	t.Helper()

	s := httptest.NewServer(behind)
	t.Cleanup(s.Close)

	return connectTo(t, &rest.Config{Host: s.URL, QPS: -1})
}

// direct returns a client of the server without a network between them.
func direct(t *testing.T, s *server) client.Client {
	t.Helper()

	return connectTo(t, &rest.Config{Host: "http://server", QPS: -1, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)

		return w.Result(), nil
	})})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func connectTo(t *testing.T, config *rest.Config) client.Client {
	t.Helper()

	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))

	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.SchemeGroupVersion.WithKind("Website"), meta.RESTScopeNamespace)
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	require.NoError(t, err)

	return c
}

func TestLoad(t *testing.T) {
	c := connect(t, &server{})
	run := load.Start(t.Context(), load.Options{Client: c, Namespace: "n", Ring: "ring", Prefix: "x", Rate: 50, Clock: clock.RealClock{}})
	require.Eventually(t, func() bool { return run.Created() >= 9 }, 20*time.Second, 10*time.Millisecond)

	result := run.Stop()

	require.Equal(t, 1, result.Failed)
	require.Len(t, result.Errors, 1)
	require.Contains(t, result.Errors[0], "no room")
	require.Equal(t, result.Created-1, result.Admitted)
	require.InDelta(t, 100*float64(result.Admitted)/float64(result.Created), result.AdmittedPercent(), 1e-9)
	require.Positive(t, result.Slowest)
	require.Less(t, result.Slowest, 10*time.Second)
	require.LessOrEqual(t, result.Typical, result.Late)
	require.InDelta(t, float64(result.Created)/result.Took.Seconds(), result.Rate(), 1e-9)
	require.LessOrEqual(t, result.Rate(), 60.0)
}

func TestCreatesThatAreLateAreMadeUpFor(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	run := load.Start(t.Context(), load.Options{Client: connect(t, &server{}), Namespace: "n", Ring: "ring", Prefix: "x", Rate: 50, Clock: clk})
	require.Eventually(t, clk.HasWaiters, 20*time.Second, time.Millisecond)
	clk.Step(time.Second)
	require.Eventually(t, func() bool { return run.Created() == 49 }, 20*time.Second, 10*time.Millisecond, "all that are due but the refused one")

	stopped := make(chan load.Result)
	go func() { stopped <- run.Stop() }()

	var result load.Result
	require.Eventually(t, func() bool {
		clk.Step(time.Second) // for who waits until the second one has its shard

		select {
		case result = <-stopped:
			return true
		default:
			return false
		}
	}, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, 1, result.Failed)
}

// A load that is more than shards can do waits for them, and does not make up for that time.
func TestWaitsForTheShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{slow: true, sites: []*v1alpha1.Website{{}, {}, {}}} // past those with which something is wrong
		run := load.Start(t.Context(), load.Options{
			Client: direct(t, s), Namespace: "n", Ring: "ring", Prefix: "x", Rate: 50, Clock: clock.RealClock{},
		})

		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble, so it takes no time
		synctest.Wait()

		ahead := run.Created()
		require.InDelta(t, 5*50, ahead, 10)

		s.setSlow(false)
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble, so it takes no time

		result := run.Stop()
		require.InDelta(t, ahead+59*50, result.Created, 60) // the shards are seen to catch up within a second
		require.InDelta(t, 56*time.Second, result.Held, float64(2*time.Second))
		require.Equal(t, 2*time.Minute, result.Took)
	})
}

// A load whose process did not run while the shards were behind does not make up for that time either.
func TestWaitsForTheShardsAlsoIfItLooksLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{slow: true, sites: []*v1alpha1.Website{{}, {}, {}}}
		clk := clocktesting.NewFakeClock(time.Unix(0, 0))
		run := load.Start(t.Context(), load.Options{Client: direct(t, s), Namespace: "n", Ring: "ring", Prefix: "x", Rate: 50, Clock: clk})

		for range 6 {
			synctest.Wait()
			clk.Step(time.Second)
		}

		synctest.Wait()

		ahead := run.Created()
		require.Equal(t, 5*50, ahead)

		s.setSlow(false)
		clk.Step(time.Minute) // one look, and all work is done
		synctest.Wait()
		require.Equal(t, ahead, run.Created())

		for range 2 { // the first look may come before the last object is seen to be done
			clk.Step(time.Second)
			synctest.Wait()
		}

		require.LessOrEqual(t, ahead+50, run.Created())
		require.LessOrEqual(t, run.Created(), ahead+100)
		require.GreaterOrEqual(t, run.Stop().Held, 61*time.Second)
	})
}

func TestNothing(t *testing.T) {
	require.Zero(t, load.Result{}.AdmittedPercent())
	require.Zero(t, load.Result{}.Rate())
}
