package history_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
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
		Process: 42, Shard: "shard-0", Controller: "checksum", Kind: "ConfigMap", Namespace: cm.Namespace,
		Name: "a", UID: cm.UID,
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

	_, err = r.Reconcile(t.Context(),
		reconcile.Request{NamespacedName: types.NamespacedName{Namespace: cm.Namespace, Name: "gone"}})
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

func at(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }

func span(object, shard string, from, to int) history.Span {
	return history.Span{Name: object, Worker: history.Worker{Shard: shard, PID: int(shard[0])},
		Start: at(from), End: at(to)}
}

func byName(s history.Span) string { return s.Name }

func TestOverlaps(t *testing.T) {
	for name, test := range map[string]struct {
		spans []history.Span
		want  []string // object, first, second
	}{
		"nothing":                  {},
		"one after the other":      {spans: []history.Span{span("x", "a", 0, 10), span("x", "b", 11, 20)}},
		"begins as the other ends": {spans: []history.Span{span("x", "a", 0, 10), span("x", "b", 10, 20)}},
		"different objects":        {spans: []history.Span{span("x", "a", 0, 10), span("y", "b", 5, 20)}},
		"one worker with itself":   {spans: []history.Span{span("x", "a", 0, 10), span("x", "a", 5, 20)}},
		"second begins within": {spans: []history.Span{span("x", "a", 0, 10), span("x", "b", 9, 20)},
			want: []string{"x a b"}},
		"in any order of reading": {spans: []history.Span{span("x", "b", 9, 20), span("x", "a", 0, 10)},
			want: []string{"x a b"}},
		"one inside the other": {spans: []history.Span{span("x", "a", 0, 100), span("x", "b", 20, 30)},
			want: []string{"x a b"}},
		"both begin at once": {spans: []history.Span{span("x", "b", 0, 20), span("x", "a", 0, 10)},
			want: []string{"x a b"}},
		"long one hidden by a short": {spans: []history.Span{span("x", "a", 0, 100), span("x", "a", 10, 20),
			span("x", "b", 50, 60)}, want: []string{"x a b"}},
		"three at once": {
			spans: []history.Span{span("x", "a", 0, 100), span("x", "b", 10, 90), span("x", "c", 20, 80)},
			want:  []string{"x a b", "x a c", "x b c"},
		},
		"in the order of time": {
			spans: []history.Span{span("x", "a", 50, 60), span("x", "b", 55, 65), span("y", "a", 0, 10), span("y", "b", 5, 15)},
			want:  []string{"y a b", "x a b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, o := range history.Overlaps(test.spans, byName) {
				got = append(got, fmt.Sprint(o.First.Name, " ", o.First.Shard, " ", o.Second.Shard))
			}
			require.Equal(t, test.want, got)
		})
	}
}

func TestSameShardInTwoProcesses(t *testing.T) {
	before, after := span("x", "a", 0, 10), span("x", "a", 5, 20)
	after.PID++
	require.Len(t, history.Overlaps([]history.Span{before, after}, byName), 1)
}

func TestClose(t *testing.T) {
	killed, running, ended := span("x", "a", 0, 0), span("y", "b", 0, 0), span("z", "a", 0, 5)
	spans := []history.Span{killed, running, ended}

	closed := history.Close(spans, map[int]time.Duration{'a': at(50)}, at(1000))

	require.Equal(t, []time.Duration{at(50), at(1000), at(5)},
		[]time.Duration{closed[0].End, closed[1].End, closed[2].End})
	require.Zero(t, spans[0].End, "the argument is unchanged")
	// The work of a killed shard ends with it: its successor may begin at that moment, but not earlier.
	require.Empty(t, history.Overlaps([]history.Span{closed[0], span("x", "b", 50, 60)}, byName))
	require.Len(t, history.Overlaps([]history.Span{closed[0], span("x", "b", 49, 60)}, byName), 1)
}

func TestWithout(t *testing.T) {
	pause := history.Pause{PID: 'a', From: at(10), Until: at(20)}

	for name, test := range map[string]struct {
		span history.Span
		want []history.Span
	}{
		"before":               {span("x", "a", 0, 10), []history.Span{span("x", "a", 0, 10)}},
		"after":                {span("x", "a", 20, 30), []history.Span{span("x", "a", 20, 30)}},
		"around":               {span("x", "a", 5, 30), []history.Span{span("x", "a", 5, 10), span("x", "a", 20, 30)}},
		"into":                 {span("x", "a", 5, 15), []history.Span{span("x", "a", 5, 10)}},
		"out of":               {span("x", "a", 15, 30), []history.Span{span("x", "a", 20, 30)}},
		"within":               {span("x", "a", 12, 18), nil},
		"of another process":   {span("x", "b", 5, 30), []history.Span{span("x", "b", 5, 30)}},
		"as long as the pause": {span("x", "a", 10, 20), nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, history.Without([]history.Span{test.span}, pause))
		})
	}
}

const recorded = `{"event":"start","sequence":1,"process":7,"shard":"a","controller":"website","kind":"Website","namespace":"n","name":"x","uid":"u","time":"2026-01-02T12:00:00Z","monotonic":1000000}
{"event":"start","sequence":2,"process":7,"shard":"a","kind":"Website","namespace":"n","name":"y","time":"2026-01-02T12:00:00.001Z","monotonic":2000000}
{"event":"end","sequence":1,"process":7,"shard":"a","kind":"Website","namespace":"n","name":"x","time":"2026-01-02T13:00:00Z","monotonic":5000000,"error":"conflict"}
`

func TestRead(t *testing.T) {
	var r history.Reader
	require.NoError(t, r.Read(strings.NewReader(recorded+`{"event":"sta`)))

	worker := history.Worker{Shard: "a", PID: 7}
	require.Equal(t, []history.Span{
		// although the clock was set meanwhile
		{Kind: "Website", Namespace: "n", Name: "x", UID: "u", Worker: worker, Start: at(1), End: at(5), Error: "conflict"},
		{Kind: "Website", Namespace: "n", Name: "y", Worker: worker, Start: at(2)},
	}, r.Spans())

	require.Equal(t, time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC), r.Time(at(1)))
}

func TestReadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"no json\n": "line 1: decode",
		"{}\n":      `unknown event ""`,
		`{"event":"start","sequence":9,"process":7,"shard":"a","time":"2026-01-02T12:00:00Z"}` +
			"\n": "is missing",
		`{"event":"end","sequence":9,"process":7,"shard":"a","name":"x","time":"2026-01-02T12:00:00Z"}` +
			"\n": "an end without a start",
		`{"event":"pause","sequence":9,"process":7,"shard":"a","name":"x","time":"2026-01-02T12:00:00Z"}` +
			"\n": `unknown event "pause"`,
	} {
		var r history.Reader
		require.ErrorContains(t, r.Read(strings.NewReader(text)), want)
	}

	_, err := history.ReadFiles(t.TempDir() + "/none")
	require.Error(t, err)
}

// refusing answers every patch with an error, as a fence does. The nil client has no other method.
type refusing struct{ client.Client }

func (refusing) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return context.DeadlineExceeded
}

// TestCarelessWritesOnlyAfterAnInterruption shows when a careless shard writes.
func TestCarelessWritesOnlyAfterAnInterruption(t *testing.T) {
	var out bytes.Buffer

	stopping := make(chan struct{})
	c := history.NewCareless(refusing{}, func() string { return "a" }, stopping, &out)
	reconcileWith := func(ctx context.Context) {
		r := c.Reconciler(&corev1.ConfigMap{},
			reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				return reconcile.Result{}, nil
			}))
		_, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "o"}})
		require.NoError(t, err)
		c.Wait()
	}

	reconcileWith(t.Context())
	require.Empty(t, out.String())

	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	reconcileWith(interrupted)
	require.JSONEq(t, `{"kind": "ConfigMap", "namespace": "ns", "name": "o", "error": "context deadline exceeded"}`,
		out.String())

	out.Reset()
	close(stopping)
	reconcileWith(interrupted)
	require.Empty(t, out.String(), "the process stops")
}

func TestRefusedCarelessWrites(t *testing.T) {
	writes, err := history.ReadCarelessWrites(strings.NewReader(`{"kind":"Website","namespace":"ns","name":"a","error":"forbidden: fence of ring example: shard b owns websites ns/a"}
{"kind":"Website","namespace":"ns","name":"b"}
{"kind":"Website","namespace":"ns","name":"c","error":"not found"}
`))
	require.NoError(t, err)

	refused, others := history.Refused(writes, "example")
	require.Equal(t, 1, refused)
	require.Equal(t, []string{"Website ns/b was written", "Website ns/c was not refused by the fence: not found"}, others)

	_, err = history.ReadCarelessWrites(strings.NewReader("no JSON"))
	require.ErrorContains(t, err, "read careless writes")
}
