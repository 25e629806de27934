package record_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const recorded = `{"event":"start","sequence":1,"process":7,"shard":"a","kind":"Website","name":"x","uid":"u","monotonic":1000}
{"event":"start","sequence":2,"process":7,"shard":"a","kind":"Website","name":"y","uid":"v","monotonic":2000}
{"event":"end","sequence":1,"process":7,"shard":"a","kind":"Website","name":"x","uid":"u","monotonic":5000}
{"event":"sta`

func TestHistories(t *testing.T) {
	file := func(content string) string {
		path := filepath.Join(t.TempDir(), "history")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))

		return path
	}
	worker := history.Worker{Shard: "a", PID: 7}

	for name, test := range map[string]struct {
		ended map[int]time.Duration
		want  time.Duration
	}{"it lives": {nil, 9000}, "it has ended": {map[int]time.Duration{7: 6000}, 6000}} {
		read, err := record.Histories(file(recorded), file(""))
		require.NoError(t, err, name)
		require.Equal(t, []history.Span{
			{Kind: "Website", Name: "x", UID: "u", Worker: worker, Start: 1000, End: 5000},
			{Kind: "Website", Name: "y", UID: "v", Worker: worker, Start: 2000, End: test.want},
		}, history.Close(read.Spans(), test.ended, 9000), name)
	}

	_, err := record.Histories(file(`{"event":"end"}` + "\n"))
	require.ErrorContains(t, err, "without a start")
	_, err = record.Histories(file("x\n"))
	require.ErrorContains(t, err, "line 1")
}
