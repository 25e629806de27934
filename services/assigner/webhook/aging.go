package webhook

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// ageJitter is the part of the age by which connections differ, so that those that began together do not end together.
const ageJitter = 0.5

// Aging asks clients to reconnect when their connection has reached an age. An API server sends all calls of a webhook over one
// connection for as long as it lasts: without a limit, a new replica would get no calls, and the others would keep all of them.
//
// The last answer on an old connection contains "Connection: close", which Go's server turns into GOAWAY for HTTP/2: calls in
// flight are answered, and new calls use a new connection. Therefore, no call fails, and an idle connection costs nothing.
//
// Create it with [NewAging]. It is safe for concurrent use.
type Aging struct {
	next  http.Handler
	age   time.Duration
	clock clock.PassiveClock

	mu sync.Mutex
	// ends says when each connection, named by its client's address, is old enough.
	ends map[string]time.Time
	// sweep is when entries of connections that are gone are next removed.
	sweep time.Time
}

// NewAging returns a handler that passes requests to next, and limits connections to about the given age: at least that, and at
// most half as much again. If the age is 0, connections have no limit.
func NewAging(next http.Handler, age time.Duration, clk clock.PassiveClock) *Aging {
	return &Aging{next: next, age: age, clock: clk, ends: map[string]time.Time{}}
}

// ServeHTTP implements http.Handler.
func (a *Aging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.age > 0 && a.old(r.RemoteAddr) {
		w.Header().Set("Connection", "close")
	}

	a.next.ServeHTTP(w, r)
}

// old reports whether the client's connection shall end, and forgets it then.
func (a *Aging) old(client string) bool {
	now := a.clock.Now()

	a.mu.Lock()
	defer a.mu.Unlock()

	a.forget(now)

	end, known := a.ends[client]
	if !known {
		a.ends[client] = now.Add(a.age + time.Duration(rand.Float64()*ageJitter*float64(a.age)))
		return false
	}

	if now.Before(end) {
		return false
	}

	delete(a.ends, client)

	return true
}

// forget removes, now and then, what is long over: connections that ended by themselves. An address that is used again while its
// entry lasts ends early, which does no harm.
func (a *Aging) forget(now time.Time) {
	const ages = 10

	if now.Before(a.sweep) {
		return
	}

	a.sweep = now.Add(ages * a.age)

	for client, end := range a.ends {
		if now.Sub(end) > ages*a.age {
			delete(a.ends, client)
		}
	}
}
