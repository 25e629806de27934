package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/clusterring/clusterring/tools/testkit/proxy"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a proxy in front of a server that answers writes with a version and watches with what the test sends.
type fixture struct {
	*testing.T
	proxy  *proxy.Proxy
	client *http.Client
	base   string
	writes atomic.Int32
	hold   chan struct{} // unless nil, writes wait for it
	events chan string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{T: t, events: make(chan string, 16)}
	server := httptest.NewServer(http.HandlerFunc(w.answer))
	t.Cleanup(server.Close)

	p, err := proxy.Start(&rest.Config{Host: server.URL}, func(w proxy.Write) bool { return w.Resource == "events" })
	require.NoError(t, err)
	t.Cleanup(p.Stop)
	t.Cleanup(func() { w.client.CloseIdleConnections() })

	w.proxy = p

	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	require.NoError(t, os.WriteFile(from, []byte(`{"kind":"Config","apiVersion":"v1","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"https://there:1","certificate-authority-data":"eA=="}}],
"users":[{"name":"c","user":{"token":"secret"}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}]}`), 0o600))
	require.NoError(t, p.Kubeconfig(from, to))
	config, err := clientcmd.BuildConfigFromFlags("", to)
	require.NoError(t, err)
	require.Equal(t, "secret", config.BearerToken)
	w.base = config.Host
	transport, err := rest.HTTPClientFor(config)
	require.NoError(t, err)

	w.client = transport

	return w
}

func (w *fixture) answer(out http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		out.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(out).Flush()

		for {
			select {
			case e := <-w.events:
				fmt.Fprintf(out, `{"type":"%s"}`+"\n", e)
				_ = http.NewResponseController(out).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}

	if r.Method != http.MethodGet {
		w.writes.Add(1)

		if w.hold != nil {
			<-w.hold
		}
	}
	fmt.Fprintf(out, `{"metadata":{"resourceVersion":"7","name":"%s"}}`, r.Header.Get("Accept"))
}

func (w *fixture) do(method, path, body string) (status int, text string, err error) {
	request, err := http.NewRequestWithContext(w.Context(), method, w.base+path, strings.NewReader(body))
	require.NoError(w, err)
	request.Header.Set("Accept", "application/vnd.kubernetes.protobuf;as=X,application/json")

	response, err := w.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()

	content, err := io.ReadAll(response.Body)

	return response.StatusCode, string(content), err
}

const object = "/apis/g.example/v1/namespaces/n/things/a"

func TestWritesAreRecorded(t *testing.T) {
	w := newFixture(t)

	var seen []string
	w.proxy.Hook(func(write proxy.Write) proxy.Action {
		seen = append(seen, fmt.Sprint(write, " ", write.Group))
		return proxy.Action{}
	})

	for _, r := range [][2]string{
		{"GET", object}, {"PATCH", object + "/status"}, {"POST", "/api/v1/namespaces/n/events"},
		{"POST", "/api/v1/namespaces"}, {"DELETE", "/api/v1/nodes/x"}, {"POST", "/version"},
	} {
		status, text, err := w.do(r[0], r[1], `{}`)
		require.NoError(t, err)
		require.Equal(t, 200, status)
		require.Contains(t, text, "application/json;as=X,application/json", "no protobuf")
	}
	require.Equal(t, []string{"PATCH things/status n/a g.example", "POST namespaces ", "DELETE nodes x "}, seen)

	done := w.proxy.Done()
	require.Len(t, done, 3)
	require.Equal(t, "7", done[0].ResourceVersion)
}

func TestLabels(t *testing.T) {
	one := "1"
	require.Equal(t, map[string]*string{"a": &one, "b": nil},
		proxy.Write{Body: []byte(`{"metadata":{"labels":{"a":"1","b":null}}}`)}.Labels())
	require.Empty(t, proxy.Write{Body: []byte("k8s\x00")}.Labels())
}

func TestFaultsOfWrites(t *testing.T) {
	for name, test := range map[string]struct {
		action  proxy.Action
		status  int
		applied int32
	}{
		"conflict":               {proxy.Action{Status: 409}, 409, 0},
		"too many":               {proxy.Action{Status: 429}, 429, 0},
		"closed before":          {proxy.Action{Abort: true}, 0, 0},
		"closed after":           {proxy.Action{Lose: true}, 0, 1},
		"timeout though applied": {proxy.Action{Lose: true, Status: 504}, 504, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			told := false
			test.action.Applied = func(d proxy.Done) {
				told = true
				require.Equal(w, "7", d.ResourceVersion)
				require.Equal(w, test.action.Lose, d.Lost)
			}
			w.proxy.Hook(func(proxy.Write) proxy.Action { return test.action })

			status, text, err := w.do("PATCH", object, `{}`)

			if test.status == 0 {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
				require.Contains(t, text, `"kind":"Status"`)
			}
			require.Equal(t, test.status, status)
			require.Equal(t, test.applied, w.writes.Load())
			require.Equal(t, test.applied == 1, told)
		})
	}
}

// watch returns what a watch says, line by line; the channel closes with the watch.
func (w *fixture) watch() <-chan string {
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, w.base+object+"?watch=true", http.NoBody)
	require.NoError(w, err)
	response, err := w.client.Do(request) //nolint:bodyclose // the reader closes it
	require.NoError(w, err)

	lines := make(chan string, 16)

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(lines)
		defer response.Body.Close()

		for in := bufio.NewScanner(response.Body); in.Scan(); {
			lines <- in.Text()
		}
	}()
	w.Cleanup(func() { <-ended })
	w.Cleanup(w.proxy.Stop)

	return lines
}

func (w *fixture) expect(lines <-chan string, want string) {
	w.Helper()
	require.Eventually(w, func() bool {
		select {
		case got := <-lines:
			require.Equal(w, want, got)
			return true
		default:
			return false
		}
	}, patience, time.Millisecond, "nothing came, want %q", want)
}

func TestWatches(t *testing.T) {
	w := newFixture(t)
	lines := w.watch()
	w.events <- "ONE"
	w.expect(lines, `{"type":"ONE"}`)

	w.proxy.Watches(proxy.Watching{Hold: true})
	w.events <- "TWO"
	w.events <- "THREE"
	require.Never(t, func() bool { return len(lines) > 0 }, 50*time.Millisecond, 10*time.Millisecond)
	w.proxy.Watches(proxy.Watching{})
	w.expect(lines, `{"type":"TWO"}`)
	w.expect(lines, `{"type":"THREE"}`)

	w.proxy.Watches(proxy.Watching{Delay: 100 * time.Millisecond})

	begin := time.Now()
	w.events <- "LATE"
	w.expect(lines, `{"type":"LATE"}`)
	require.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)

	w.proxy.Watches(proxy.Watching{Drop: true})
	w.events <- "LOST"
	require.Eventually(t, func() bool { return len(w.events) == 0 }, patience, time.Millisecond)
	w.proxy.CloseWatches()
	w.expect(lines, "") // the end
}

func TestCutAndRestore(t *testing.T) {
	w := newFixture(t)
	lines := w.watch()
	w.proxy.Cut()
	w.expect(lines, "")
	_, _, err := w.do("GET", object, "")
	require.Error(t, err)

	w.proxy.Restore()
	status, _, err := w.do("GET", object, "")
	require.NoError(t, err)
	require.Equal(t, 200, status)
}

func TestWriteIsRecordedThoughItsClientIsGone(t *testing.T) {
	w := newFixture(t)
	w.hold = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, w.base+object, strings.NewReader(`{}`))
	require.NoError(t, err)

	go func() {
		for w.writes.Load() == 0 {
			runtime.Gosched()
		}
		cancel()
	}()

	response, err := w.client.Do(request)
	if err == nil {
		defer response.Body.Close()
	}
	require.ErrorIs(t, err, context.Canceled)
	close(w.hold)
	require.Eventually(t, func() bool { return len(w.proxy.Done()) == 1 }, patience, time.Millisecond)
	require.Equal(t, "7", w.proxy.Done()[0].ResourceVersion)
}
