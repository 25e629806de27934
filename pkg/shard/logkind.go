package shard

import (
	"maps"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// noting is a LogSink that remembers the values of its logger. The builder of controllers puts the For kind of a controller nowhere but there.
type noting struct {
	logr.LogSink

	values map[string]string
}

// noted returns the logger with a memory.
func noted(l logr.Logger) logr.Logger { return l.WithSink(noting{LogSink: l.GetSink()}) }

// kindIn returns the kind that the builder has put into the logger of a controller; empty if there is none.
func kindIn(l logr.Logger) schema.GroupKind {
	n, _ := l.GetSink().(noting)

	return schema.GroupKind{Group: n.values["controllerGroup"], Kind: n.values["controllerKind"]}
}

// Init implements logr.LogSink.
func (n noting) Init(info logr.RuntimeInfo) {
	info.CallDepth++
	n.LogSink.Init(info)
}

// WithValues implements logr.LogSink.
func (n noting) WithValues(keysAndValues ...any) logr.LogSink {
	values := maps.Clone(n.values)
	if values == nil {
		values = map[string]string{}
	}

	for i := 0; i+1 < len(keysAndValues); i += 2 {
		key, isKey := keysAndValues[i].(string)
		if value, isText := keysAndValues[i+1].(string); isKey && isText {
			values[key] = value
		}
	}

	return noting{n.LogSink.WithValues(keysAndValues...), values}
}

// WithName implements logr.LogSink.
func (n noting) WithName(name string) logr.LogSink { return noting{n.LogSink.WithName(name), n.values} }

// WithCallDepth implements logr.CallDepthLogSink.
func (n noting) WithCallDepth(depth int) logr.LogSink {
	if s, ok := n.LogSink.(logr.CallDepthLogSink); ok {
		return noting{s.WithCallDepth(depth), n.values}
	}

	return n
}
