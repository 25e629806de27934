// Package proxy is a proxy between one process and the API server that injects failures of the network and the API
// server.
//
// It reads every request of the process. It calls a hook that decides about each, and records the responses. It can
// forward, delay, or drop the events of watches, and it can cut the process off. It makes no decisions. The process
// keeps its identity, because its token is forwarded.
//
// Invariants:
//
//  1. A write that the hook does not change reaches the API server once, and its response reaches the client. It is
//     recorded even if the client has abandoned it meanwhile.
//  2. The hook is called before the API server sees the write. [Action.Applied] is called after the write was applied
//     and before the client receives the response.
//  3. Events of a watch keep their order. No event is lost unless the policy drops it.
//
// The client uses TLS to the proxy, because it does not send its token otherwise. All responses are JSON, so that the
// proxy can separate events.
package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// errLost is the error for a response that is not forwarded.
var errLost = errors.New("the response was dropped")

// Proxy is the proxy of one process. Create it with [Start]. It is safe for concurrent use.
type Proxy struct {
	server   *httptest.Server
	upstream *http.Transport
	running  sync.WaitGroup

	mu      sync.Mutex
	hook    func(Write) Action
	ignore  func(Write) bool
	done    []Done
	policy  policy
	streams map[*stream]struct{}
	cut     context.CancelFunc // of the requests under way
	alive   context.Context    // ends when the client is cut off
	isCut   bool
}

// Start starts a proxy of an API server, of which only host and CA are used, not the credentials, on a free port.
// [Proxy.Stop] ends it. The hook does not see the writes to ignore.
func Start(server *rest.Config, ignore func(Write) bool) (*Proxy, error) {
	target, err := url.Parse(server.Host)
	if err != nil {
		return nil, fmt.Errorf("read the address of the API server: %w", err)
	}

	authorities, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: server.CAData}})
	if err != nil {
		return nil, fmt.Errorf("prepare TLS to the API server: %w", err)
	}

	p := &Proxy{
		ignore:   ignore,
		upstream: &http.Transport{TLSClientConfig: authorities, ForceAttemptHTTP2: true, DisableCompression: true},
		policy:   policy{changed: make(chan struct{})},
		streams:  map[*stream]struct{}{},
	}
	p.alive, p.cut = context.WithCancel(context.Background())
	silent := log.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { rewrite(r, target) },
		Transport:      p.upstream,
		FlushInterval:  -1,
		ModifyResponse: p.answered,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       silent,
	}

	// HTTP/1.1 alone: to abort an answer is to close a connection then.
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.serve(w, r, forward)
	}))
	p.server.Config.ErrorLog = silent
	p.server.StartTLS()

	return p, nil
}

// rewrite requests uncompressed JSON, whatever the client accepts.
func rewrite(r *httputil.ProxyRequest, target *url.URL) {
	r.SetURL(target)
	r.Out.Header.Del("Accept-Encoding")
	accept := strings.ReplaceAll(r.Out.Header.Get("Accept"), "application/vnd.kubernetes.protobuf", "application/json")
	r.Out.Header.Set("Accept", accept)
}

// Stop closes all connections and returns when all goroutines of the proxy have ended.
func (p *Proxy) Stop() {
	p.Cut()
	p.server.CloseClientConnections()
	p.server.Close()
	p.running.Wait()
	p.upstream.CloseIdleConnections()
}

// Kubeconfig rewrites a kubeconfig to use the proxy, and saves it to another path.
func (p *Proxy) Kubeconfig(from, to string) error {
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})

	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return fmt.Errorf("read the kubeconfig of a process: %w", err)
	}

	for _, cluster := range config.Clusters {
		cluster.Server, cluster.CertificateAuthorityData = p.server.URL, certificate
	}

	if err := clientcmd.WriteToFile(*config, to); err != nil {
		return fmt.Errorf("write the kubeconfig of a process: %w", err)
	}

	return nil
}

// Hook sets the hook for all further writes; nil forwards all writes. The hook is called concurrently.
func (p *Proxy) Hook(hook func(Write) Action) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.hook = hook
}

// Done returns the writes so far with a response of the API server, in the order of the responses.
func (p *Proxy) Done() []Done {
	p.mu.Lock()
	defer p.mu.Unlock()

	return slices.Clone(p.done)
}

// Watches sets the policy for further events and for events that are held at present.
func (p *Proxy) Watches(w Watching) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.policy.changed)
	p.policy = policy{Watching: w, changed: make(chan struct{})}
}

// CloseWatches closes all watches. Held events are lost; clients watch again from the last version that they have seen.
func (p *Proxy) CloseWatches() {
	p.mu.Lock()
	all := slices.Collect(maps.Keys(p.streams))
	p.mu.Unlock()

	for _, s := range all {
		_ = s.Close() // it is always nil
	}
}

// Cut cuts the process off until [Proxy.Restore]: current and further requests fail.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.isCut = true
	p.cut()
	p.mu.Unlock()
	p.CloseWatches()
}

// Restore ends what [Proxy.Cut] began.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.isCut {
		p.isCut = false
		p.alive, p.cut = context.WithCancel(context.Background())
	}
}

// serve handles one request.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	p.mu.Lock()
	alive := p.alive
	p.mu.Unlock()

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(alive, cancel)()

	if alive.Err() != nil {
		panic(http.ErrAbortHandler)
	}

	write, ok := parse(r)
	if !ok || p.ignore(write) {
		forward.ServeHTTP(w, r.WithContext(ctx))
		return
	}

	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}

	r.Body = io.NopCloser(bytes.NewReader(body))
	write.Body = body

	p.mu.Lock()
	hook := p.hook
	p.mu.Unlock()

	action := Action{}
	if hook != nil {
		action = hook(write)
	}

	switch {
	case action.Abort:
		panic(http.ErrAbortHandler)
	case action.Status != 0 && !action.Lose:
		answer := failure(action.Status) //nolint:bodyclose // it is in memory
		maps.Copy(w.Header(), answer.Header)
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body) // fails only if the client is gone
	default:
		// A write that may be applied is completed and recorded even if the client is gone.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()

		under := &underway{write: write, action: action, alive: alive}
		forward.ServeHTTP(w, r.WithContext(context.WithValue(ctx, key{}, under)))
	}
}

type key struct{}

// underway is a write in progress.
type underway struct {
	write  Write
	action Action
	alive  context.Context // ends when the client is cut off
}

// answered handles every response of the API server before the client receives it.
func (p *Proxy) answered(response *http.Response) error {
	if under, ok := response.Request.Context().Value(key{}).(*underway); ok {
		return p.written(response, under)
	}

	if watch, _ := strconv.ParseBool(response.Request.URL.Query().Get("watch")); watch &&
		response.StatusCode == http.StatusOK {
		response.Body = newStream(p, response.Body)
	}

	return nil
}

// written records the response to a write.
func (p *Proxy) written(response *http.Response, under *underway) error {
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("read the answer to %s: %w", under.write, err)
	}

	_ = response.Body.Close() // it was read to its end
	response.Body = io.NopCloser(bytes.NewReader(body))

	var object struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}

	_ = json.Unmarshal(body, &object) // other responses have no version
	done := Done{Write: under.write, Status: response.StatusCode, ResourceVersion: object.Metadata.ResourceVersion,
		Lost: under.action.Lose}
	p.mu.Lock()
	p.done = append(p.done, done)
	p.mu.Unlock()

	if under.action.Applied != nil {
		under.action.Applied(done)
	}

	switch {
	case under.action.Lose && under.action.Status == 0 || under.alive.Err() != nil:
		return errLost
	case under.action.Lose:
		answer := failure(under.action.Status) //nolint:bodyclose // it becomes that of the response
		response.StatusCode, response.Header, response.Body = answer.StatusCode, answer.Header, answer.Body
	}

	return nil
}

// failure returns the response of an API server that fails with the status code.
func failure(code int) *http.Response {
	status := apierrors.NewGenericServerResponse(code, "write", schema.GroupResource{}, "", "injected fault", 0,
		false).Status()
	header := http.Header{"Content-Type": {"application/json"}}

	if code == http.StatusTooManyRequests {
		status.Details.RetryAfterSeconds = 1
		header.Set("Retry-After", "1")
	}

	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, _ := json.Marshal(status) // cannot fail: plain fields

	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(bytes.NewReader(body))}
}
