package shard

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// present is what the API server said about the versions that its resources have reached. Its methods are safe for concurrent use.
//
// A list without a resourceVersion is at least as new as everything that was written before it was sent.
type present struct {
	selector func() labels.Selector // that of the shard, which may be all that the program may list

	mu sync.Mutex
	of map[schema.GroupResource]*answer
}

// answer is the last one about a resource.
type answer struct {
	version string    // empty: there is none yet
	sent    time.Time // when the request was sent that got the version
	asked   time.Time // when the last request was sent
	asking  bool      // whether it is still running
	err     error     // why the last one failed
}

func newPresent(selector func() labels.Selector) *present {
	return &present{selector: selector, of: map[schema.GroupResource]*answer{}}
}

// ahead reports whether the API server had not reached the version at a moment after the given time.
func (p *present) ahead(resource schema.GroupResource, version string, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	a := p.of[resource]

	return a != nil && a.version != "" && !a.sent.Before(since) && notOlder(a.version, version) == behind
}

// ask asks the API server for the version of the resource of a cache, unless somebody did a moment ago. It does not wait for the answer: the worker
// is inside of objects. It returns why the last request failed.
func (p *present) ask(ctx context.Context, c *cached, namespace string, now time.Time) error {
	live := c.live()
	if live == nil {
		return nil
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	resource := c.resource.GroupResource()

	a := p.of[resource]
	if a == nil {
		a = &answer{}
		p.of[resource] = a
	}

	if a.asking || now.Sub(a.asked) < recheck {
		return a.err
	}

	a.asked, a.asking = now, true

	go func() {
		// The answer serves other objects too, so it does not end with the work on this one.
		page, err := c.page(context.WithoutCancel(ctx), live, namespace, metav1.ListOptions{LabelSelector: p.selector().String(), Limit: 1})

		p.mu.Lock()
		defer p.mu.Unlock()

		a.asking, a.err = false, err
		if err == nil {
			a.version, a.sent = page.ResourceVersion, now
		}
	}()

	return a.err
}
