package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/clusterring/clusterring/tools/example/history"
)

// logger returns a logger that writes to standard error.
func logger(level, format string) (logr.Logger, error) {
	levels := map[string]zapcore.Level{"debug": zapcore.DebugLevel, "info": zapcore.InfoLevel, "error": zapcore.ErrorLevel}
	formats := map[string]zap.Opts{"text": zap.ConsoleEncoder(), "json": zap.JSONEncoder()}

	at, known := levels[level]
	if !known {
		return logr.Logger{}, fmt.Errorf("--log-level is %q: it must be debug, info, or error", level)
	}

	encode, known := formats[format]
	if !known {
		return logr.Logger{}, fmt.Errorf("--log-format is %q: it must be text or json", format)
	}

	return zap.New(zap.Level(at), encode), nil
}

// openRecords opens the file so that each write is appended as a whole, even if others write to it. The path "-" is standard
// output, which contains nothing else from this process: the log of a Pod then contains the history between the log messages.
func openRecords(path string) (io.WriteCloser, error) {
	if path == "-" {
		return output{os.Stdout}, nil
	}

	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // the user's choice
	if err != nil {
		return nil, fmt.Errorf("open the file of records (--history-file, --careless-file): %w", err)
	}

	return file, nil
}

// output is standard output, which must not be closed.
type output struct{ io.Writer }

// Close implements io.Closer.
func (output) Close() error { return nil }

func processID() int { return os.Getpid() }

// now reads both clocks.
func now() history.Stamp {
	return history.Stamp{Time: time.Now(), Monotonic: monotonic()}
}
