package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/services/internal/quota"
)

const (
	// maxStreams limits the calls that one connection has in progress. An API server that has more of them waits.
	maxStreams = 50
	// maxConnections and maxConnectionsEach are how many connections there are at a time, in all and from one address. An
	// API server uses one for each call, and keeps up to 25 for the next ones.
	maxConnections, maxConnectionsEach = 512, 160
	// maxUnread limits the bytes of bodies that a connection holds before they are read.
	maxUnread = 64 << 10
	// maxHeaders is more than the headers of an API server have.
	maxHeaders = 4 << 10
	// idle is how long a connection may live without calls: as long as an API server keeps one.
	idle = 90 * time.Second
	// stopping limits how long the server waits for the calls in progress when it stops.
	stopping = time.Minute
	// connectionAge is the time after which a client is asked to reconnect, plus up to half of it at random, so that
	// connections that began together do not end together.
	connectionAge = time.Second
)

// Server serves the webhook with TLS, in every replica. It limits connections, and what a connection may hold: 50
// calls, 4 KiB of headers, 64 KiB of bodies that were not read yet, and 5 seconds for a handshake or for headers.
// controller-runtime's server has none of these limits, and no way to set them. It is a manager.Runnable. The fields
// must not be changed after Start.
type Server struct {
	// Address to listen on, as host:port.
	Address string
	Handler http.Handler
	// GetCertificate returns the serving certificate.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCAs returns the CA certificates of clients. A client without a certificate that one of them has signed is
	// refused. Nil: clients need no certificate.
	ClientCAs func() *x509.CertPool
	Clock     clock.PassiveClock
	Log       logr.Logger

	listening atomic.Bool
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica serves.
func (*Server) NeedLeaderElection() bool { return false }

// Ready is a readiness check. It returns an error until the server listens. It is safe for concurrent use.
func (s *Server) Ready(*http.Request) error {
	if !s.listening.Load() {
		return errors.New("the webhook does not listen yet")
	}

	return nil
}

// Start serves until ctx ends, and then until the calls in progress have their answers. It returns an error if it
// cannot listen.
func (s *Server) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listen for the webhook (--webhook-bind-address): %w", err)
	}

	s.listening.Store(true)

	listener = tls.NewListener(quota.New(maxConnections, maxConnectionsEach).Listen(listener), s.tls())

	server := &manager.Server{Name: "webhook", Server: s.http(ctx), Listener: listener, ShutdownTimeout: new(stopping)}
	if err := server.Start(ctx); err != nil {
		return fmt.Errorf("serve the webhook: %w", err)
	}

	return nil
}

func (s *Server) http(ctx context.Context) *http.Server {
	return &http.Server{
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       s.begin,
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: patience, // of handshakes, too
		IdleTimeout:       idle,
		MaxHeaderBytes:    maxHeaders,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxUnread,
			MaxReceiveBufferPerStream: maxUnread},
		// Everyone who reaches the port can cause these messages.
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(s.Log.WithName("webhook")), slog.LevelDebug),
	}
}

// end is the key of when a connection is old enough, a time.Time, in the context of its requests.
type end struct{}

func (s *Server) begin(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, end{}, s.Clock.Now().Add(connectionAge+rand.N(connectionAge/2)))
}

// serve asks the client to reconnect when its connection is old. An API server sends all calls of a webhook over one
// connection for as long as it lasts: without a limit, a new replica would get no calls, and the others would keep all
// of them.
//
// Go's server turns "Connection: close" into GOAWAY for HTTP/2: calls in flight are answered, and new calls use a new
// connection. Therefore, no call fails, and an idle connection costs nothing.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if old, _ := r.Context().Value(end{}).(time.Time); !s.Clock.Now().Before(old) {
		w.Header().Set("Connection", "close")
	}

	s.Handler.ServeHTTP(w, r)
}

func (s *Server) tls() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: s.GetCertificate}
	if s.ClientCAs == nil {
		return config
	}

	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := config.Clone()
		current.ClientAuth, current.ClientCAs = tls.RequireAndVerifyClientCert, s.ClientCAs()

		return current, nil
	}

	return config
}
