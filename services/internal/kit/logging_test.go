package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLogs shows both formats, and what is not worth a line.
func TestLogs(t *testing.T) {
	for format, want := range map[string]string{
		formatJSON: `{"level":"info","ts":"*","logger":"assigner","msg":"Assigned","shard":"a"}` + "\n" +
			`{"level":"error","ts":"*","logger":"assigner.leaderelection","msg":"Failed","error":"no route"}` + "\n",
		formatText: "*\tINFO\tassigner\tAssigned\t{\"shard\": \"a\"}\n" + "*\tERROR\tassigner.leaderelection\tFailed\t{\"error\": \"no route\"}\n",
	} {
		var out bytes.Buffer

		log, err := newLogger(&Options{LogLevel: "info", LogFormat: format}, "assigner", &out)
		require.NoError(t, err)
		log.Info("Assigned", "shard", "a")
		log.V(1).Info("Only at level debug")
		election := log.WithName("leaderelection")
		election.Error(errors.New("no route"), "Failed")
		election.Error(fmt.Errorf("get: %w", context.Canceled), "Cancelled by the stop")
		log.WithValues("n", 1).Error(errors.New("leader election lost"), "error received after stop sequence was engaged")
		require.Regexp(t, "^"+strings.ReplaceAll(regexp.QuoteMeta(want), `\*`, `[-0-9T:.Z]+`)+"$", out.String())
	}
}

// TestDebugLevel shows what the other levels hide.
func TestDebugLevel(t *testing.T) {
	for level, lines := range map[string]int{"error": 1, "info": 2, "debug": 3} {
		var out bytes.Buffer

		log, err := newLogger(&Options{LogLevel: level, LogFormat: formatText}, "assigner", &out)
		require.NoError(t, err)
		log.Error(nil, "error")
		log.Info("info")
		log.V(1).Info("debug")
		require.Equal(t, lines, bytes.Count(out.Bytes(), []byte("\n")), level)
	}
}
