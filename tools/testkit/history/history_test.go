package history_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, nil)) }

// stamps returns times one second apart.
func stamps() func() history.Stamp {
	var seconds int64

	return func() history.Stamp {
		seconds++

		return history.Stamp{Time: time.Unix(seconds, 500).UTC(), Monotonic: seconds}
	}
}

func TestRecorder(t *testing.T) {
	p := localplane.Shared(t)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace(t), Name: "a"}}
	require.NoError(t, p.Client.Create(t.Context(), cm))
	req := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cm)}

	var (
		out    bytes.Buffer
		during int
		result error
	)

	recorder := history.NewRecorder(&out, 42, func() string { return "shard-0" }, stamps())
	r := recorder.Reconciler(
		history.Subject{Controller: "checksum", Object: &corev1.ConfigMap{}, Reader: p.Client},
		reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			during = bytes.Count(out.Bytes(), []byte("\n"))

			return reconcile.Result{RequeueAfter: time.Second}, result
		}),
	)

	got, err := r.Reconcile(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, time.Second, got.RequeueAfter)
	require.Equal(t, 1, during, "the start is written before the work begins")

	result = errors.New("broken")
	_, err = r.Reconcile(t.Context(), req)
	require.ErrorIs(t, err, result)

	entry := history.Entry{
		Process: 42, Shard: "shard-0", Controller: "checksum", Kind: "ConfigMap", Namespace: cm.Namespace, Name: "a", UID: cm.UID,
	}

	var want []history.Entry

	for i, e := range []struct {
		event, err string
		sequence   uint64
	}{{history.Start, "", 1}, {history.End, "", 1}, {history.Start, "", 2}, {history.End, "broken", 2}} {
		entry.Event, entry.Error, entry.Sequence = e.event, e.err, e.sequence
		entry.Stamp = history.Stamp{Time: time.Unix(int64(i+1), 500).UTC(), Monotonic: int64(i + 1)}
		want = append(want, entry)
	}
	require.Contains(t, out.String(), `"time":"1970-01-01T00:00:01.0000005Z","monotonic":1`)
	require.Equal(t, want, decode(t, &out))

	_, err = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: cm.Namespace, Name: "gone"}})
	require.ErrorIs(t, err, result, "passed on")
	require.Zero(t, out.Len(), "there is nothing to work on")
}

func decode(t *testing.T, from *bytes.Buffer) []history.Entry {
	t.Helper()

	var entries []history.Entry

	for decoder := json.NewDecoder(from); decoder.More(); {
		var e history.Entry
		require.NoError(t, decoder.Decode(&e))
		entries = append(entries, e)
	}

	return entries
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestNoWorkGoesUnrecorded(t *testing.T) {
	p := localplane.Shared(t)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace(t), Name: "a"}}
	require.NoError(t, p.Client.Create(t.Context(), cm))

	r := history.NewRecorder(fullDisk{}, 1, func() string { return "shard-0" }, stamps()).Reconciler(
		history.Subject{Object: &corev1.ConfigMap{}, Reader: p.Client},
		reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			t.Error("it worked unrecorded")

			return reconcile.Result{}, nil
		}),
	)
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cm)})
	require.ErrorContains(t, err, "write the history: the disk is full")
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wall := clock.RealClock{} // of the bubble
		before := wall.Now()
		called := 0
		inner := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			called++

			return reconcile.Result{}, nil
		})

		r := history.Delay(wall, time.Minute, inner)
		_, err := r.Reconcile(t.Context(), reconcile.Request{})
		require.NoError(t, err)
		require.Equal(t, time.Minute, wall.Since(before))

		ctx, cancel := context.WithCancel(t.Context())
		cancel()

		_, err = r.Reconcile(ctx, reconcile.Request{})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, called)
	})
}
