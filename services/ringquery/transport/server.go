package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protobuf "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/services/internal/certs"
	"github.com/clusterring/clusterring/services/internal/quota"
)

// healthInterval is how often the server updates the reported health.
const healthInterval = 100 * time.Millisecond

// Server serves gRPC until its manager stops it.
//
// # Invariants
//
//  1. It listens from the start, so that clients see that they have to wait: health is NOT_SERVING until the service is
//     ready.
//  2. As soon as the service is asked to stop, health is NOT_SERVING. The server still answers calls.
//  3. When the service stops, running calls can finish until the drain time is over. Until then, everything that they
//     need keeps running. Streams could run forever, so they end immediately with UNAVAILABLE. A client that does not
//     read delays the shutdown no longer than that.
type Server struct {
	// Options are validated.
	Options Options
	// Name is that of the service, and of its Kubernetes Service.
	Name string
	// Namespace is that of the Service, the Secret, and the ConfigMap.
	Namespace string
	// Register registers the service on the server.
	Register func(grpc.ServiceRegistrar)
	// Stream intercepts each call, also unary ones, before its request is read. It runs after metrics, logs, and the
	// deadline, and authorizes the call.
	Stream []grpc.StreamServerInterceptor
	// Ready returns nil while the service is ready. It returns an error when the service is asked to stop.
	Ready func() error
	// DrainTime is how long running calls have to finish.
	DrainTime time.Duration
	// Clock and Log are those of the service.
	Clock clock.WithTickerAndDelayedExecution
	Log   logr.Logger

	grpc    *grpc.Server
	health  *health.Server
	streams streams
	// certificate is nil without TLS.
	certificate certs.Source
}

// SetupWithManager lets the manager run the server. It reads the files of the certificate, so that a mistake is
// reported immediately.
func (s *Server) SetupWithManager(mgr manager.Manager) error {
	creds := insecure.NewCredentials()

	if !s.Options.Plaintext {
		if err := s.setUpCertificate(mgr); err != nil {
			return err
		}

		creds = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.certificate.GetCertificate})
	}

	stopping, end := context.WithCancel(context.Background())
	s.streams = streams{s.Options.CallTimeout, stopping, end}

	interceptors := s.interceptors()
	s.grpc = grpc.NewServer(append(s.limits(), grpc.ChainStreamInterceptor(interceptors...), grpc.Creds(creds))...)
	s.health = health.NewServer()

	registrar := Streamed{s.grpc, interceptors}
	s.Register(registrar)
	s.setHealth(healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(registrar, s.health)
	reflection.Register(s.grpc)
	calls().InitializeMetrics(s.grpc)

	if err := mgr.Add(&serving{s, mgr.GetCache()}); err != nil {
		return fmt.Errorf("add the gRPC server: %w", err)
	}

	// The manager stops this before the caches.
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		s.stop()

		return nil
	})); err != nil {
		return fmt.Errorf("add the end of the gRPC server: %w", err)
	}

	return nil
}

// limits prevents one client from using all resources of the server.
func (s *Server) limits() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.StaticStreamWindowSize(maxUnreadBytes),
		grpc.StaticConnWindowSize(maxUnreadBytes * 16),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(protobuf.Name)}),
		grpc.InTapHandle(newDoor()),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle:     maxIdle,
			MaxConnectionAge:      maxAge,
			MaxConnectionAgeGrace: ageGrace,
			Time:                  pingAfter,
			Timeout:               pingTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
}

// serving runs the server in the manager's group of caches: from the start until all other runnables have stopped.
type serving struct {
	*Server

	cache cache.Cache
}

// GetCache puts the runnable into the group of caches.
func (s *serving) GetCache() cache.Cache { return s.cache }

// Start serves until ctx ends.
func (s *serving) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Options.BindAddress)
	if err != nil {
		return fmt.Errorf("serve gRPC: %w", err)
	}

	s.Log.Info("Serving gRPC", "address", listener.Addr().String(), "tls", !s.Options.Plaintext)

	ctx, ended := context.WithCancel(ctx)
	done := make(chan error, 1)

	go func() {
		defer ended()

		done <- s.grpc.Serve(quota.New(maxConnections, maxConnectionsEach).Listen(listener))
	}()

	wait.UntilWithContext(ctx, func(context.Context) {
		if s.Ready() == nil {
			s.setHealth(healthpb.HealthCheckResponse_SERVING)
		} else {
			s.setHealth(healthpb.HealthCheckResponse_NOT_SERVING)
		}
	}, healthInterval)
	s.grpc.Stop()

	if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC: %w", err)
	}

	return nil
}

func (s *Server) setHealth(status healthpb.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", status)

	for name := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(name, status)
	}
}

// stop waits until running calls have finished, at most for the drain time.
func (s *Server) stop() {
	s.health.Shutdown()
	s.streams.end()

	s.Log.V(1).Info("Draining", "drainTime", s.DrainTime.String())

	// Stop ends the calls that GracefulStop waits for.
	defer s.Clock.AfterFunc(s.DrainTime, func() {
		s.Log.Info("Ending the calls that are still running", "drainTime", s.DrainTime.String())
		s.grpc.Stop()
	}).Stop()
	s.grpc.GracefulStop()
}

// setUpCertificate sets up the source of the serving certificate. The manager keeps it up to date, and, if the
// certificate is in a Secret, also the ConfigMap for clients.
func (s *Server) setUpCertificate(mgr manager.Manager) error {
	if s.Options.CAMode == CAFile {
		files, err := certs.NewFiles(s.Options.CertFile, s.Options.KeyFile)
		if err != nil {
			return fmt.Errorf("%w (--tls-cert-file, --tls-private-key-file)", err)
		}

		s.certificate = files

		return files.SetupWithManager(mgr)
	}

	s.certificate = &certs.Secret{
		Client:    mgr.GetClient(),
		Live:      mgr.GetAPIReader(),
		Name:      types.NamespacedName{Namespace: s.Namespace, Name: s.Options.Secret.Name},
		ConfigMap: s.Options.CAConfigMap,
		Policy:    s.Options.Secret.Policy(s.Name, s.Name+"."+s.Namespace+".svc"),
		Clock:     s.Clock,
	}

	return s.certificate.SetupWithManager(mgr)
}

// CertificateReady is a part of readiness. It returns nil if clients can verify the certificate now, or if the server
// uses no TLS. It is safe for concurrent use after SetupWithManager.
func (s *Server) CertificateReady(r *http.Request) error {
	if s.certificate == nil {
		return nil
	}

	if err := s.certificate.Ready(r); err != nil {
		return err
	}

	current, err := s.certificate.GetCertificate(nil)
	if err != nil {
		return err
	}

	now, shown := s.Clock.Now(), current.Leaf
	if now.Before(shown.NotBefore) || now.After(shown.NotAfter) {
		return fmt.Errorf("the server's certificate is valid only from %s to %s",
			shown.NotBefore.UTC().Format(time.RFC3339), shown.NotAfter.UTC().Format(time.RFC3339))
	}

	return nil
}
