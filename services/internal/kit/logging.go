package kit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	formatJSON = "json"
	formatText = "text"
)

// parseLevel translates the value of --log-level.
func parseLevel(level string) (zapcore.Level, error) {
	switch level {
	case "debug":
		return zapcore.DebugLevel, nil
	case "info":
		return zapcore.InfoLevel, nil
	case "error":
		return zapcore.ErrorLevel, nil
	}

	return 0, fmt.Errorf("--log-level must be debug, info, or error, not %q", level)
}

// newLogger returns a logger that writes to out. Options must be valid.
func newLogger(o *Options, name string, out io.Writer) (logr.Logger, error) {
	level, err := parseLevel(o.LogLevel)
	if err != nil {
		return logr.Logger{}, err
	}

	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder

	encoder := zapcore.NewJSONEncoder(encoding)
	if o.LogFormat == formatText {
		encoding.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(encoding)
	}

	core := zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(out)), level)

	return zapr.NewLogger(zap.New(quietStop{core})).WithName(name), nil
}

// quietStop drops the errors that libraries log on a graceful stop, where nothing is wrong: the manager finds that it has
// lost the Lease that it has just released, and the elector that a renewal was cancelled. A real loss ends the command with
// an error, and is not logged this way.
type quietStop struct{ zapcore.Core }

func (q quietStop) With(fields []zapcore.Field) zapcore.Core { return quietStop{q.Core.With(fields)} }

func (q quietStop) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !q.Enabled(e.Level) {
		return ce
	}

	return ce.AddCore(e, q)
}

func (q quietStop) Write(e zapcore.Entry, fields []zapcore.Field) error {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && isGracefulStop(e, err) {
			return nil
		}
	}

	return q.Core.Write(e, fields) //nolint:wrapcheck // a Core is a pass-through, its errors are zap's own
}

func isGracefulStop(e zapcore.Entry, err error) bool {
	if strings.HasSuffix(e.LoggerName, ".leaderelection") {
		return errors.Is(err, context.Canceled)
	}

	return strings.HasPrefix(e.Message, "error received after stop sequence was engaged") && err.Error() == "leader election lost"
}

// ownsProcess marks the context of a command that is all that its process does, as under [Main].
type ownsProcess struct{}

// setGlobalLoggers hands the logger to the libraries that log without being given one. It does nothing in a process that is
// not the command's own: klog does not allow it while anything uses a client.
func setGlobalLoggers(ctx context.Context, o *Options) error {
	if ctx.Value(ownsProcess{}) == nil {
		return nil
	}

	log, err := newLogger(o, "client", os.Stderr)
	if err != nil {
		return err
	}
	klog.SetLoggerWithOptions(log, klog.ContextualLogger(true))
	ctrllog.SetLogger(log)

	return nil
}
