package shard

import (
	"cmp"
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// present is what the API server said about the versions that its kinds have reached. Its methods are safe for concurrent use.
//
// A list without a resourceVersion is at least as new as everything that was written before it was sent.
type present struct {
	selector func() labels.Selector // that of the shard, which may be all that the program may list

	mu sync.Mutex
	of map[schema.GroupKind]*answer
}

// answer is the last one about a kind.
type answer struct {
	version string    // empty: there is none yet
	sent    time.Time // when the request was sent that got the version
	asked   time.Time // when the last request was sent
	asking  bool      // whether it is still running
	err     error     // why the last one failed
}

// ahead reports whether the API server had not reached the version of a kind at a moment after the given time.
func (p *present) ahead(gk schema.GroupKind, version string, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	a := p.of[gk]

	return a != nil && a.version != "" && !a.sent.Before(since) && notOlder(a.version, version) == behind
}

// ask asks the API server for the version of what a store shows, unless the answer to an earlier request is good enough for the object, or
// somebody asked a moment ago. It does not wait for the answer: the worker is inside of objects. It returns why the last request failed.
func (p *present) ask(ctx context.Context, o handed, c *store) error {
	p.mu.Lock()
	defer p.mu.Unlock()

	gk := c.form.gvk.GroupKind()

	a := p.of[gk]
	if a == nil {
		a = &answer{}
		p.of[gk] = a
	}

	if a.asking || o.now.Sub(a.asked) < recheck || a.version != "" && !a.sent.Before(o.wait.since) {
		return a.err
	}

	a.asked, a.asking = o.now, true
	namespace, list := cmp.Or(o.GetNamespace(), c.namespace), metav1.ListOptions{LabelSelector: p.selector().String(), Limit: 1}

	go func() {
		// The answer serves other objects too, so it does not end with the work on this one.
		page, err := c.page(context.WithoutCancel(ctx), namespace, list)

		p.mu.Lock()
		defer p.mu.Unlock()

		a.asking, a.err = false, err
		if err == nil {
			a.version, a.sent = page.ResourceVersion, o.now
		}
	}()

	return a.err
}
