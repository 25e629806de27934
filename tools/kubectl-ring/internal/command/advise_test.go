package command_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
)

// metricsPage is the page of a process with one controller, after some seconds of which it was busy with reconciles of
// 50 ms.
func metricsPage(seconds, perSecond float64) string {
	n := seconds * perSecond

	soonDone, wait := n, 0.001
	if perSecond > 10 {
		soonDone, wait = n/2, 2
	}

	return fmt.Sprintf(`# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total %g
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1893582000
# TYPE go_sched_gomaxprocs_threads gauge
go_sched_gomaxprocs_threads 4
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",method="GET"} %g
# TYPE controller_runtime_max_concurrent_reconciles gauge
controller_runtime_max_concurrent_reconciles{controller="website"} 1
# TYPE controller_runtime_reconcile_total counter
controller_runtime_reconcile_total{controller="website",result="success"} %g
# TYPE controller_runtime_reconcile_time_seconds histogram
controller_runtime_reconcile_time_seconds_bucket{controller="website",le="0.05"} %g
controller_runtime_reconcile_time_seconds_bucket{controller="website",le="+Inf"} %g
controller_runtime_reconcile_time_seconds_sum{controller="website"} %g
controller_runtime_reconcile_time_seconds_count{controller="website"} %g
# TYPE workqueue_depth gauge
workqueue_depth{controller="website",name="website",priority="0"} %g
# TYPE workqueue_adds_total counter
workqueue_adds_total{controller="website",name="website"} %g
# TYPE workqueue_queue_duration_seconds histogram
workqueue_queue_duration_seconds_bucket{controller="website",name="website",le="0.1"} %g
workqueue_queue_duration_seconds_bucket{controller="website",name="website",le="10"} %g
workqueue_queue_duration_seconds_bucket{controller="website",name="website",le="+Inf"} %g
workqueue_queue_duration_seconds_sum{controller="website",name="website"} %g
workqueue_queue_duration_seconds_count{controller="website",name="website"} %g
`, seconds/10, n*2, n, n, n, n*0.05, n, (n-soonDone)/10, n+(n-soonDone)/10, soonDone, n, n, n*wait, n)
}

// pages serves the metrics of a process that was idle, or busy, for 30 s between any two readings.
func pages(t *testing.T) string {
	t.Helper()

	var busy, idle atomic.Int64

	mux := http.NewServeMux()
	serve := func(path string, readings *atomic.Int64, perSecond float64) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, metricsPage(float64(30*(readings.Add(1)-1)), perSecond))
		})
	}
	serve("/busy", &busy, 19)
	serve("/idle", &idle, 1)
	mux.HandleFunc("GET /other", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE go_goroutines gauge\ngo_goroutines 7\n")
	})
	mux.HandleFunc("GET /html", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>hello</html>") })
	mux.HandleFunc("GET /protected", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	})
	mux.HandleFunc("GET /moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/idle", http.StatusFound)
	})
	mux.HandleFunc("GET /huge", func(w http.ResponseWriter, _ *http.Request) {
		line := strings.Repeat("x", 1<<20)
		for range 40 {
			fmt.Fprint(w, line)
		}
	})

	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	return server.URL
}

// runStepping runs the program, while its clock goes on as fast as it waits.
func (p *program) runStepping(ctx context.Context, args ...string) int {
	over := make(chan struct{})
	stepped := make(chan struct{})

	go func() {
		defer close(stepped)

		for {
			select {
			case <-over:
				return
			default:
				if p.clock.HasWaiters() {
					p.clock.Step(time.Second)
				}
			}
		}
	}()

	code := p.run(ctx, args...)
	close(over)
	<-stepped

	return code
}

// TestAdviceTranscript compares the output about pages in the text format with testdata.
func TestAdviceTranscript(t *testing.T) {
	t.Setenv("HOME", "/home/you")
	t.Setenv("KUBECACHEDIR", "")

	url := pages(t)
	empty := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))

	got := play(t, []string{
		"advise --metrics URL/busy", "advise --metrics URL/busy --no-headers --cpu-limit 100m",
		"advise --metrics URL/idle --metrics URL/busy --target-p99 30s",
		"advise --metrics URL/idle -o json",
		"advise --metrics URL/idle -o yaml",
		"advise --metrics URL/other", "advise --metrics URL/html", "advise --metrics URL/protected",
		"advise --metrics URL/moved", "advise --metrics URL/huge",
		"advise --metrics URL/nothing",
		"advise", "advise --metrics URL --pods app=x", "advise --pods app=x", "advise --metrics ftp://x",
		"advise --metrics http://", "advise --metrics http://me@x",
		"advise --metrics ://", "advise --metrics URL --for 1ms", "advise --metrics URL --target-p99 0s",
		"advise --metrics URL --cpu-limit many",
		"advise --metrics URL --token-file /does/not/exist", "advise --metrics URL --ca-file EMPTY",
		"advise --metrics http://192.0.2.1 --token-file /etc/hostname", "advise --metrics URL --request-timeout later",
		"advise --metrics URL -o name", "advise x", "advise --help",
	}, func(p *program, line string) int {
		line = strings.NewReplacer("URL", url, "EMPTY", empty).Replace(line)

		return p.runStepping(t.Context(), strings.Fields(line)...)
	})

	host := strings.TrimPrefix(url, "http://")
	golden(t, "advise", strings.NewReplacer(url, "URL", host, strings.Repeat("H", len("127.0.0.1:00000")), empty,
		"EMPTY").Replace(got))
}

// TestAdviceIsInterrupted verifies that the wait ends with the context.
func TestAdviceIsInterrupted(t *testing.T) {
	url := pages(t)
	ctx, cancel := context.WithCancel(t.Context())
	p := newProgram(t)
	code := make(chan int, 1)

	go func() { code <- p.run(ctx, "advise", "--metrics", url+"/idle") }()

	require.Eventually(t, p.clock.HasWaiters, soon, tick)
	cancel()
	require.Equal(t, command.NoAnswer, <-code)
	require.Contains(t, p.err.String(), "interrupted while the controller was observed")
}

// TestPageShowsWhatIsPrinted compares the output on the page about the advice with that of the program.
func TestPageShowsWhatIsPrinted(t *testing.T) {
	const host = "127.0.0.1:18080" // as long as a real one

	url := pages(t)
	p := newProgram(t)
	require.Equal(t, command.Problem, p.runStepping(t.Context(), "advise", "--metrics", url+"/busy"), p.err.String())
	onPage(t, "when-to-shard.md", "advice", "advise --metrics http://"+host+"/busy\n"+
		strings.ReplaceAll(p.err.String()+p.out.String(), strings.TrimPrefix(url, "http://"), host))
}
