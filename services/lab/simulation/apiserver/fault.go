package apiserver

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Effect is the effect of a fault on requests.
type Effect string

const (
	// Refuse answers with an error and does nothing.
	Refuse Effect = "refuse"
	// Lose executes the request, and answers that it took too long.
	Lose Effect = "lose"
	// Hang does not answer until the client gives up. It still executes every second write.
	Hang Effect = "hang"
	// Slow delays requests before they are executed.
	Slow Effect = "slow"
	// Blind silences watches forever: the open ones, and those that are opened meanwhile.
	Blind Effect = "blind"
	// Stall holds back the events of watches until the fault is over.
	Stall Effect = "stall"
)

// Fault is a temporary failure.
type Fault struct {
	From, Until time.Time
	// Client is the class of clients that it affects; empty for all.
	Client string
	// Verb is get, list, watch, create, update, patch, delete, or "write" for the last four; empty for all. A streaming
	// list counts as a watch and a list.
	Verb string
	// Resource is the affected resource, in the notation of schema.GroupResource; empty for all.
	Resource string
	Effect   Effect
	// Code is the HTTP status of refused requests.
	Code int
	// Delay is the delay of slow requests.
	Delay time.Duration
	// Percent is the share of affected requests; 0 means all.
	Percent int
}

var errConnectionLost = errors.New("http2: client connection lost")

// Inject adds faults.
func (s *Server) Inject(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for i := range faults {
		f := faults[i]
		s.faults = append(s.faults, &f)

		if f.Effect == Blind && !f.From.After(s.clock.Now()) {
			for w := range s.watchers {
				if f.concerns(w.client.class, w.request) {
					w.blind = true
				}
			}
		}
	}
}

// hits reports whether the fault affects a request now. h selects the affected requests of a partial fault.
func (f *Fault) hits(now time.Time, class string, r request, h uint64) bool {
	if now.Before(f.From) || !now.Before(f.Until) || !f.concerns(class, r) {
		return false
	}

	if f.Effect == Blind || f.Effect == Stall {
		return false // another request
	}

	return f.Percent == 0 || h%100 < uint64(f.Percent) //nolint:gosec // a percentage
}

func (f *Fault) concerns(class string, r request) bool {
	return (f.Client == "" || f.Client == class) &&
		(f.Verb == "" || f.Verb == r.verb || f.Verb == r.kind || f.Verb == "write" && r.writes()) &&
		(f.Resource == "" || f.Resource == r.resource.String())
}

// refused is the error for a request that the server itself refuses. 404 does not come from a resource.
func refused(code int, r request) error {
	return apierrors.NewGenericServerResponse(code, r.verb, r.resource, "", "", 0, code == http.StatusNotFound)
}

// Break is the way in which watches end.
type Break string

const (
	// Closed ends watches silently, as after their maximum duration.
	Closed Break = "closed"
	// Expired ends them with the error for an expired version.
	Expired Break = "expired"
	// Failed ends them with an internal error.
	Failed Break = "failed"
)

// Cut ends the open watches of a class of clients and a resource; empty means all.
func (s *Server) Cut(how Break, class, resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	f := &Fault{Client: class, Resource: resource}

	for w := range s.watchers {
		if f.concerns(w.client.class, w.request) {
			w.end(how)
		}
	}
}

// Compact drops the whole history.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.compacted = s.version

	for _, st := range s.stores {
		st.history = nil
	}
}

// Served is how a resource is served.
type Served struct {
	// Version is the preferred version. Others are the other served versions.
	Version string
	Others  []string
	// Kind is the kind of its objects.
	Kind string
	// Namespaced is false for a cluster-scoped resource.
	Namespaced bool
	// Down means that the server behind it does not answer.
	Down bool
}

// Serve serves a resource in this way from now on. Watches of versions that are no longer served end.
func (s *Server) Serve(gr schema.GroupResource, how Served) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.served[gr] = how
	s.endUnserved(gr)
}

// Withdraw stops serving a resource. Its objects stay, and are available when it is served again.
func (s *Server) Withdraw(gr schema.GroupResource) {
	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.served, gr)
	s.endUnserved(gr)
}

// Resources returns how each resource is served.
func (s *Server) Resources() map[schema.GroupResource]Served {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.served)
}

// Discover returns the same, within [Client.Call].
func (c *Client) Discover() map[schema.GroupResource]Served { return maps.Clone(c.server.served) }

func (s *Server) endUnserved(gr schema.GroupResource) {
	for w := range s.watchers {
		if w.gvr.GroupResource() == gr { // the storage is rebuilt, also for versions that stay
			w.end(Closed)
		}
	}
}

// refuses returns the error for a request of a version that is not served; nil if it is served.
func (s *Server) refuses(gvr schema.GroupVersionResource, r request) error {
	how, ok := s.served[gvr.GroupResource()]
	if !ok || how.Version != gvr.Version && !slices.Contains(how.Others, gvr.Version) {
		return refused(http.StatusNotFound, r)
	}

	if how.Down {
		return refused(http.StatusServiceUnavailable, r)
	}

	return nil
}
