// Package key promises one thing.
package key

import (
	_ "github.com/prometheus/client_golang/prometheus"
	_ "k8s.io/client-go/rest"
	_ "k8s.io/utils/clock"
	_ "log/slog"
	_ "net/http"
	_ "os"
)
