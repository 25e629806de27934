package takeover

import (
	"context"
	"errors"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// countingReader counts the lists that go to the API server.
type countingReader struct {
	client.Reader

	mu    sync.Mutex
	lists int
	one   bool // whether the last one was of a single shard
}

func (c *countingReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.mu.Lock()
	c.lists++
	c.one = ofOne(opts)
	c.mu.Unlock()

	return c.Reader.List(ctx, list, opts...)
}

// ofOne reports whether a list is of a single shard.
func ofOne(opts []client.ListOption) bool {
	return slices.ContainsFunc(opts, func(o client.ListOption) bool { _, ok := o.(client.MatchingFields); return ok })
}

// slowReader reports when a list begins, and then waits.
type slowReader struct {
	client.Reader

	begins, goOn chan struct{}
}

func (s *slowReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	s.begins <- struct{}{}
	<-s.goOn

	return s.Reader.List(ctx, list, opts...)
}

// lateReader calls late after each list of all shards, which fails if there is an error.
type lateReader struct {
	client.Reader

	late func()
	err  error
	all  int
}

func (l *lateReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := l.Reader.List(ctx, list, opts...)

	if !ofOne(opts) {
		l.all++
		l.late()

		err = errors.Join(err, l.err)
	}

	return err
}
