package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// annotationCareless is what a [Careless] writes to an object: the name of its shard.
const annotationCareless = "example.clusterring.dev/careless"

// Careless stands for a controller that does not check its Lease: when a reconcile was interrupted because the shard
// lost the Lease, it writes the object all the same. Only the fence of the ring can prevent that. It is safe for
// concurrent use.
type Careless struct {
	client   client.Client
	shard    func() string
	stopping <-chan struct{}
	busy     sync.WaitGroup

	mu  sync.Mutex
	out *json.Encoder
}

// CarelessWrite is what became of a write.
type CarelessWrite struct {
	// Kind, Namespace, and Name identify the object.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Error is the answer of the API server; empty if the write succeeded.
	Error string `json:"error,omitempty"`
}

// NewCareless returns a writer for the shard whose name the function returns. Its client must check nothing. Each write
// is reported as a line of JSON. After stopping is closed, reconciles are interrupted because the process stops, and
// nothing is written.
func NewCareless(c client.Client, shard func() string, stopping <-chan struct{}, out io.Writer) *Careless {
	return &Careless{client: c, shard: shard, stopping: stopping, out: json.NewEncoder(out)}
}

// Reconciler wraps a reconciler of objects of the given kind.
func (c *Careless) Reconciler(kind client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		c.busy.Add(1)
		defer c.busy.Done()

		result, err := inner.Reconcile(ctx, req)

		if ctx.Err() == nil {
			return result, err //nolint:wrapcheck // as it is
		}

		select {
		case <-c.stopping:
		default:
			c.write(context.WithoutCancel(ctx), kind, req.NamespacedName)
		}

		return result, err //nolint:wrapcheck // as it is
	})
}

// ReadCarelessWrites returns the writes that a [Careless] has reported, or an error about a line that is none.
func ReadCarelessWrites(r io.Reader) ([]CarelessWrite, error) {
	var writes []CarelessWrite

	for in := json.NewDecoder(r); ; {
		var w CarelessWrite

		switch err := in.Decode(&w); {
		case errors.Is(err, io.EOF):
			return writes, nil
		case err != nil:
			return writes, fmt.Errorf("read careless writes: %w", err)
		}

		writes = append(writes, w)
	}
}

// Refused returns how many writes the fence of the ring has refused, and describes the others.
func Refused(writes []CarelessWrite, ring string) (refused int, others []string) {
	for _, w := range writes {
		switch {
		case strings.Contains(w.Error, "fence of ring "+ring+": shard "):
			refused++
		case w.Error == "":
			others = append(others, fmt.Sprintf("%s %s/%s was written", w.Kind, w.Namespace, w.Name))
		default:
			others = append(others, fmt.Sprintf("%s %s/%s was not refused by the fence: %s", w.Kind, w.Namespace, w.Name,
				w.Error))
		}
	}

	return refused, others
}

// Wait waits until no wrapped reconciler runs.
func (c *Careless) Wait() { c.busy.Wait() }

func (c *Careless) write(ctx context.Context, kind client.Object, name types.NamespacedName) {
	obj, _ := kind.DeepCopyObject().(client.Object)
	obj.SetNamespace(name.Namespace)
	obj.SetName(name.Name)

	said := CarelessWrite{Kind: reflect.TypeOf(kind).Elem().Name(), Namespace: name.Namespace, Name: name.Name}

	patch := []byte(`{"metadata":{"annotations":{"` + annotationCareless + `":"` + c.shard() + `"}}}`)
	if err := c.client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch)); err != nil {
		said.Error = err.Error()
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	_ = c.out.Encode(said) // a reader of the file misses the line
}
