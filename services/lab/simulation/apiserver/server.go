package apiserver

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
)

// Config configures a server.
type Config struct {
	// Seed determines everything that is random.
	Seed uint64
	// Page is the maximum number of objects in one page of a list; 0 means no limit.
	Page int
	// Streaming reports whether a watch may begin with the existing objects (sendInitialEvents).
	Streaming bool
	// Admit may change an object before it is stored, like an admission webhook. It is called with the server's lock held,
	// and must not call the server. It may be nil.
	Admit func(w Write)
	// Asked is called for every request when it arrives, with the server's lock held. It may be nil.
	Asked func(client, verb, resource, what string)
	// Written is called for every change, with the server's lock held. It may be nil.
	Written func(w Write)
}

// Write is a change of one object.
type Write struct {
	// Client is the name of the writer.
	Client string
	// Verb is create, update, patch or delete.
	Verb string
	ID
	// Old is the object before the change; nil for a new one. New is the object after the change; nil for a deleted one.
	// Only [Config.Admit] may change New.
	Old, New *metav1.PartialObjectMetadata
	// Others visits all current objects. Only [Config.Written] may call it.
	Others func(visit func(ID, *metav1.PartialObjectMetadata))
	// Stored returns the current state of another object; nil if there is none. It is set only for [Config.Admit].
	Stored func(ID) *metav1.PartialObjectMetadata
}

// ID identifies an object, independent of the version in which it is read.
type ID struct {
	schema.GroupResource
	Namespace, Name string
}

// String returns "resource.group namespace/name".
func (id ID) String() string {
	if id.Namespace == "" {
		return id.GroupResource.String() + " " + id.Name
	}

	return id.GroupResource.String() + " " + id.Namespace + "/" + id.Name
}

// Server is an API server in memory. It is safe for concurrent use by the goroutines of one bubble.
type Server struct {
	config Config
	clock  clock.Clock
	group  sync.WaitGroup

	mu        sync.Mutex
	version   int64
	compacted int64
	stores    map[schema.GroupResource]*store
	served    map[schema.GroupResource]Served
	leases    *leases
	faults    []*Fault
	watchers  map[*watcher]struct{}
	counts    map[string]int
	nth       map[string]uint64
	last      map[string]time.Time
}

// New returns a server without objects that serves no resource.
func New(c Config) *Server {
	return &Server{
		config: c, clock: clock.RealClock{}, version: 1, stores: map[schema.GroupResource]*store{},
		served: map[schema.GroupResource]Served{}, leases: newLeases(), watchers: map[*watcher]struct{}{},
		counts: map[string]int{}, nth: map[string]uint64{}, last: map[string]time.Time{},
	}
}

// Wait waits until no goroutine of the server runs anymore. All its users must have ended.
func (s *Server) Wait() { s.group.Wait() }

// Client is the server for one client. It implements objects.Server.
type Client struct {
	server *Server
	name   string
	class  string
}

// Client returns the server for the named client. The part of the name before the first slash is its class. Faults and
// counts distinguish clients by class.
func (s *Server) Client(name string) *Client {
	class, _, _ := strings.Cut(name, "/")

	return &Client{server: s, name: name, class: class}
}

// Counts returns the number of requests by "class verb resource".
func (s *Server) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.counts)
}

// request is a request of a client.
type request struct {
	verb     string
	resource schema.GroupResource
	// what distinguishes this request from others of the client; its duration depends on it.
	what string
	// kind distinguishes requests in the counts, in addition to verb and resource.
	kind string
}

func (r request) writes() bool {
	return r.verb == "create" || r.verb == "update" || r.verb == "patch" || r.verb == "delete"
}

// course is what happens to one request.
type course struct {
	before, after time.Duration
	// stored is the part of before that comes after admission.
	stored time.Duration
	fault  Fault // without an effect if there is none
	// applied reports whether a write is executed although its sender no longer waits for it.
	applied bool
}

// do executes a request: it calls apply once with the lock held, unless a fault or the end of ctx prevents it.
func (c *Client) do(ctx context.Context, r request, apply func() error) error {
	s := c.server

	s.mu.Lock()
	way := s.course(c, r)
	s.mu.Unlock()

	locked := func() error {
		s.mu.Lock()
		defer s.mu.Unlock()

		return apply()
	}

	if left, err := s.pause(ctx, way.before); err != nil {
		admitted := left <= way.stored // a request that is still in admission ends with the connection

		if r.writes() && way.applied && admitted && way.fault.Effect != Refuse && way.fault.Effect != Hang {
			s.group.Go(func() { // The server has received the request and continues it.
				if _, err := s.pause(context.WithoutCancel(ctx), left); err == nil {
					_ = locked()
				}
			})
		}

		return fmt.Errorf("%s %s: %w", r.verb, r.resource, err)
	}

	var err error

	switch way.fault.Effect {
	case Hang:
		if way.applied && r.writes() {
			_ = locked() // nobody receives the answer
		}

		return s.hang(ctx, r, way.fault.Until)
	case Refuse:
		err = refused(way.fault.Code, r)
	default:
		err = locked()
	}

	if _, ended := s.pause(ctx, way.after); ended != nil {
		return fmt.Errorf("%s %s: %w", r.verb, r.resource, ended)
	}

	if way.fault.Effect == Lose {
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}

	return err
}

// connectionLost is the time after which a client gives up a silent connection.
const connectionLost = 45 * time.Second

// hang waits until the fault is over, or the client gives up the connection.
func (s *Server) hang(ctx context.Context, r request, until time.Time) error {
	if _, err := s.pause(ctx, min(connectionLost, until.Sub(s.clock.Now()))); err != nil {
		return fmt.Errorf("%s %s: %w", r.verb, r.resource, err)
	}

	return fmt.Errorf("%s %s: %w", r.verb, r.resource, errConnectionLost)
}

// course determines what happens to a request, and counts it.
func (s *Server) course(c *Client, r request) course {
	s.counts[c.class+" "+r.verb+r.kind+" "+r.resource.String()]++

	if s.config.Asked != nil {
		s.config.Asked(c.name, r.verb+r.kind, r.resource.String(), r.what)
	}

	key := c.name + " " + r.verb + " " + r.resource.String() + " " + r.what
	h := s.hash(key, s.count(key))

	before, after := latency(r.verb, h)
	way := course{before: before, after: after, stored: before, applied: h&1 == 0}

	for _, f := range s.faults {
		if !f.hits(s.clock.Now(), c.class, r, mix(h, 3)) {
			continue
		}

		if f.Effect == Slow {
			way.before += f.Delay
			continue
		}

		if way.fault.Effect == "" {
			way.fault = *f
		}
	}

	return way
}

// count returns how often the same request was sent before. Equal requests at the same instant count once: their order
// must not have an effect.
func (s *Server) count(key string) uint64 {
	if now := s.clock.Now(); !now.Equal(s.last[key]) {
		s.last[key] = now
		s.nth[key]++
	}

	return s.nth[key]
}

// latency returns how long a request takes before and after its execution.
func latency(verb string, h uint64) (before, after time.Duration) {
	least := map[string]time.Duration{"list": 4 * time.Millisecond, "get": time.Millisecond,
		"watch": 2 * time.Millisecond}[verb]
	if least == 0 {
		least = 3 * time.Millisecond
	}

	// Odd durations, so that no two requests end at the same nanosecond.
	before = least + time.Duration(mix(h, 1)%uint64(3*least))
	after = least/4 + time.Duration(mix(h, 2)%uint64(least))

	return before, after
}

// lag returns the delay after which a watch of the client would deliver a change of the named object now.
func (s *Server) lag(client string, gr schema.GroupResource, name string) time.Duration {
	class, _, _ := strings.Cut(client, "/")
	key := "lag " + client + " " + gr.String() + " " + name
	s.nth[key]++

	return time.Millisecond + time.Duration(s.hash(key, s.nth[key])%uint64(30*time.Millisecond)) +
		s.lasts(Stall, class, request{verb: "watch", resource: gr})
}

// lasts returns for how long faults have an effect on a watch from now on.
func (s *Server) lasts(effect Effect, class string, r request) (d time.Duration) {
	now := s.clock.Now()

	for _, f := range s.faults {
		if f.Effect == effect && f.concerns(class, r) && !now.Before(f.From) && now.Before(f.Until) {
			d = max(d, f.Until.Sub(now))
		}
	}

	return d
}

// Call executes a request that is not about the server's own objects, such as a request for a ring.
func (c *Client) Call(ctx context.Context, verb string, gr schema.GroupResource, apply func() error) error {
	return c.do(ctx, request{verb: verb, resource: gr}, apply)
}

// pause waits. If ctx ends meanwhile, it returns the remaining time and the error of ctx.
func (s *Server) pause(ctx context.Context, d time.Duration) (left time.Duration, err error) {
	until := s.clock.Now().Add(d)
	timer := s.clock.NewTimer(d)

	defer timer.Stop()

	select {
	case <-timer.C():
		return 0, nil
	case <-ctx.Done():
		return until.Sub(s.clock.Now()), ctx.Err()
	}
}

// hash mixes the seed, a key and a number.
func (s *Server) hash(key string, n uint64) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}

	return mix(mix(h, s.config.Seed), n)
}

// mix is the finalizer of splitmix64 over two numbers.
func mix(a, b uint64) uint64 {
	z := a + (b+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb

	return z ^ z>>31
}
