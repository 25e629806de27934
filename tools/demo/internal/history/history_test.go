package history_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/demo/internal/history"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }

func span(object, shard string, from, to int) history.Span {
	return history.Span{Object: object, Worker: history.Worker{Shard: shard, PID: int(shard[0])}, Start: at(from), End: at(to)}
}

func TestOverlaps(t *testing.T) {
	for name, test := range map[string]struct {
		spans []history.Span
		want  []string // object, first, second
	}{
		"nothing":                    {},
		"one after the other":        {spans: []history.Span{span("x", "a", 0, 10), span("x", "b", 11, 20)}},
		"begins as the other ends":   {spans: []history.Span{span("x", "a", 0, 10), span("x", "b", 10, 20)}},
		"different objects":          {spans: []history.Span{span("x", "a", 0, 10), span("y", "b", 5, 20)}},
		"one worker with itself":     {spans: []history.Span{span("x", "a", 0, 10), span("x", "a", 5, 20)}},
		"second begins within":       {spans: []history.Span{span("x", "a", 0, 10), span("x", "b", 9, 20)}, want: []string{"x a b"}},
		"in any order of reading":    {spans: []history.Span{span("x", "b", 9, 20), span("x", "a", 0, 10)}, want: []string{"x a b"}},
		"one inside the other":       {spans: []history.Span{span("x", "a", 0, 100), span("x", "b", 20, 30)}, want: []string{"x a b"}},
		"both begin at once":         {spans: []history.Span{span("x", "b", 0, 20), span("x", "a", 0, 10)}, want: []string{"x a b"}},
		"long one hidden by a short": {spans: []history.Span{span("x", "a", 0, 100), span("x", "a", 10, 20), span("x", "b", 50, 60)}, want: []string{"x a b"}},
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
			for _, o := range history.Overlaps(test.spans) {
				got = append(got, fmt.Sprint(o.First.Object, " ", o.First.Worker.Shard, " ", o.Second.Worker.Shard))
			}
			require.Equal(t, test.want, got)
		})
	}
}

func TestSameShardInTwoProcesses(t *testing.T) {
	before, after := span("x", "a", 0, 10), span("x", "a", 5, 20)
	after.Worker.PID++
	require.Len(t, history.Overlaps([]history.Span{before, after}), 1)
}

func TestOverlapString(t *testing.T) {
	found := history.Overlaps([]history.Span{span("x", "a", 0, 100), span("x", "b", 20, 30)})
	require.Len(t, found, 1)
	require.Equal(t, "x: a worked on it from 12:00:00.000000 to 12:00:00.100000, "+
		"b from 12:00:00.020000 to 12:00:00.030000: both for 10ms", found[0].String())
}

func TestClose(t *testing.T) {
	killed, running, ended := span("x", "a", 0, 0), span("y", "b", 0, 0), span("z", "a", 0, 5)
	killed.End, running.End = time.Time{}, time.Time{}
	spans := []history.Span{killed, running, ended}

	closed := history.Close(spans, map[int]time.Time{'a': at(50)}, at(1000))

	require.Equal(t, []time.Time{at(50), at(1000), at(5)}, []time.Time{closed[0].End, closed[1].End, closed[2].End})
	require.True(t, spans[0].End.IsZero(), "the argument is unchanged")
	// What a killed shard had begun ends with it: its successor may begin right then, and not before.
	require.Empty(t, history.Overlaps([]history.Span{closed[0], span("x", "b", 50, 60)}))
	require.Len(t, history.Overlaps([]history.Span{closed[0], span("x", "b", 49, 60)}), 1)
}

const example = `{"event":"start","sequence":1,"process":7,"shard":"a","controller":"website","kind":"Website","namespace":"n","name":"x","uid":"u","time":"2026-01-02T12:00:00Z","monotonic":1000000}
{"event":"start","sequence":2,"process":7,"shard":"a","kind":"Website","namespace":"n","name":"y","time":"2026-01-02T12:00:00.001Z","monotonic":2000000}
{"event":"end","sequence":1,"process":7,"shard":"a","kind":"Website","namespace":"n","name":"x","time":"2026-01-02T13:00:00Z","monotonic":5000000,"error":"conflict"}
`

func TestRead(t *testing.T) {
	var r history.Reader
	require.NoError(t, r.Read(strings.NewReader(example+`{"event":"sta`)))

	worker := history.Worker{Shard: "a", PID: 7}
	require.Equal(t, []history.Span{
		{Object: "Website n/x", Worker: worker, Start: at(0), End: at(4)}, // though the clock was set meanwhile
		{Object: "Website n/y", Worker: worker, Start: at(1)},
	}, r.Spans())
}

func TestReadWithoutMonotonicClock(t *testing.T) {
	var r history.Reader
	require.NoError(t, r.Read(strings.NewReader(
		`{"event":"start","sequence":1,"process":7,"shard":"a","kind":"Website","name":"x","time":"2026-01-02T12:00:00.003Z"}`+"\n")))
	require.Equal(t, at(3), r.Spans()[0].Start)
}

func TestReadSeveralProcesses(t *testing.T) {
	var r history.Reader
	require.NoError(t, r.Read(strings.NewReader(example)))
	require.NoError(t, r.Read(strings.NewReader(strings.NewReplacer(`"process":7`, `"process":8`, `"shard":"a"`, `"shard":"b"`).Replace(example))))
	require.Len(t, r.Spans(), 4)
	require.Len(t, history.Overlaps(history.Close(r.Spans(), nil, at(10))), 2)
}

func TestReadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"no json\n": "line 1: decode",
		"{}\n":      "is missing",
		`{"event":"end","sequence":9,"process":7,"shard":"a","name":"x","time":"2026-01-02T12:00:00Z"}` + "\n":   "an end without a start",
		`{"event":"pause","sequence":9,"process":7,"shard":"a","name":"x","time":"2026-01-02T12:00:00Z"}` + "\n": `unknown event "pause"`,
	} {
		var r history.Reader
		require.ErrorContains(t, r.Read(strings.NewReader(text)), want)
	}
	var r history.Reader
	require.Error(t, r.ReadFile(t.TempDir()+"/none"))
}
