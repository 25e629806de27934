package connect_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/connect"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// pki has the certificates of a server and of its authority, and the key of the server.
type pki struct{ pem, key []byte }

// newPKI issues a certificate for the names, which can be IP addresses.
func newPKI(t *testing.T, names ...string) *pki {
	t.Helper()

	var addresses []net.IP

	for _, name := range names {
		if address := net.ParseIP(name); address != nil {
			addresses = append(addresses, address)
		}
	}

	certificates, key, err := cert.GenerateSelfSignedCertKey(names[0], addresses, names)
	require.NoError(t, err)

	return &pki{certificates, key}
}

func (p *pki) server(t *testing.T) credentials.TransportCredentials {
	t.Helper()

	pair, err := tls.X509KeyPair(p.pem, p.key)
	require.NoError(t, err)

	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
	})
}

func (p *pki) file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(path, p.pem, 0o600))

	return path
}

// server answers ListRings and records the credentials of callers.
type server struct {
	pb.UnimplementedDiagnosticsServiceServer
	address string

	mu     sync.Mutex
	tokens []string
}

func serve(t *testing.T, address string, options ...grpc.ServerOption) *server {
	t.Helper()

	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)

	s := &server{address: listener.Addr().String()}
	g := grpc.NewServer(options...)
	pb.RegisterDiagnosticsServiceServer(g, s)

	done := make(chan error, 1)
	go func() { done <- g.Serve(listener) }()
	t.Cleanup(func() {
		g.Stop()
		require.NoError(t, <-done)
	})

	return s
}

func (s *server) ListRings(ctx context.Context, _ *pb.ListRingsRequest) (*pb.ListRingsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.tokens = append(s.tokens, strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), ","))

	return &pb.ListRingsResponse{}, nil
}

// last returns the token of the last call.
func (s *server) last() (token string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.tokens[len(s.tokens)-1]
}

// call makes one call.
func call(t *testing.T, o connect.Options, config *rest.Config) error {
	t.Helper()

	if err := o.Validate(); err != nil {
		return err
	}

	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}

	conn, err := connect.Dial(t.Context(), &o, config, nil)
	if err != nil {
		return err
	}

	defer func() { require.NoError(t, conn.Close()) }()

	_, err = pb.NewDiagnosticsServiceClient(conn).ListRings(t.Context(), &pb.ListRingsRequest{})

	return err
}

// outward returns an address of this machine other than the loopback address.
func outward(t *testing.T) string {
	t.Helper()

	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)

	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() && network.IP.To4() != nil {
			return network.IP.String()
		}
	}
	t.Skip("this machine has no address but its own")

	return ""
}

func withToken() *rest.Config {
	return &rest.Config{Host: "https://127.0.0.1:1", BearerToken: "s3cret"}
}

// TestTokenIsSentToWhomItMay covers which servers get a token.
func TestTokenIsSentToWhomItMay(t *testing.T) {
	cl := newCluster(t)
	user := cl.asUser()
	here, there := "127.0.0.1", outward(t)
	authority := newPKI(t, here, there, "ringquery.example")

	ca := authority.file(t)
	for name, c := range map[string]struct {
		host    string
		options connect.Options
		sent    bool
	}{
		"plaintext, this machine":     {here, connect.Options{Plaintext: true}, true},
		"plaintext, another":          {there, connect.Options{Plaintext: true}, false},
		"verified, this machine":      {here, connect.Options{CAFile: ca}, true},
		"verified, another":           {there, connect.Options{CAFile: ca}, true},
		"not verified, this machine":  {here, connect.Options{Insecure: true}, true},
		"not verified, another":       {there, connect.Options{Insecure: true}, false},
		"verified under another name": {there, connect.Options{CAFile: ca, ServerName: "ringquery.example"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var options []grpc.ServerOption
			if !c.options.Plaintext {
				options = append(options, grpc.Creds(authority.server(t)))
			}

			s := serve(t, c.host+":0", options...)
			c.options.Endpoint, c.options.Account = s.address, cl.ns+"/ringquery-reader"
			require.NoError(t, call(t, c.options, user))

			token := s.last()
			if c.sent {
				cl.onlyForRingquery(token)
			} else {
				require.Empty(t, token)
			}
		})
	}
}

// TestServerIsVerified verifies that no query is sent to a server that cannot be verified.
func TestServerIsVerified(t *testing.T) {
	authority := newPKI(t, "127.0.0.1")

	s := serve(t, "127.0.0.1:0", grpc.Creds(authority.server(t)))
	for name, o := range map[string]connect.Options{
		"unknown to this machine": {},
		"another authority":       {CAFile: newPKI(t, "127.0.0.1").file(t)},
		"another name":            {CAFile: authority.file(t), ServerName: "ringquery.example"},
	} {
		t.Run(name, func(t *testing.T) {
			o.Endpoint = s.address
			err := call(t, o, withToken())
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.ErrorContains(t, err, "x509:")
		})
	}
	require.Empty(t, s.tokens)

	require.ErrorContains(t, call(t, connect.Options{Endpoint: s.address, CAFile: "/does/not/exist"}, nil), "--ca-file")
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.ErrorContains(t, call(t, connect.Options{Endpoint: s.address, CAFile: empty}, nil), "holds no certificate")
}

// TestCredentialsOfTheUserStayHere: no server sees the credentials in a kubeconfig.
func TestCredentialsOfTheUserStayHere(t *testing.T) {
	authority := newPKI(t, "127.0.0.1")
	s := serve(t, "127.0.0.1:0", grpc.Creds(authority.server(t)))
	o := connect.Options{Endpoint: s.address, CAFile: authority.file(t), Namespace: "sharding-system"}
	tokenFile := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte("from-file\n"), 0o600))
	plugin := filepath.Join(t.TempDir(), "plugin")
	require.NoError(t, os.WriteFile(plugin, []byte(`#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "from-plugin"}}'
`), 0o700))

	for name, config := range map[string]*rest.Config{
		"no kubeconfig": nil,
		"token":         {BearerToken: "t"},
		"file":          {BearerTokenFile: tokenFile},
		"program": {ExecProvider: &clientcmdapi.ExecConfig{
			Command: plugin, APIVersion: "client.authentication.k8s.io/v1",
			InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}},
		"certificate":    {TLSClientConfig: rest.TLSClientConfig{CertData: authority.pem, KeyData: authority.key}},
		"name, password": {Username: "u", Password: "p"},
	} {
		t.Run(name, func(t *testing.T) {
			if config != nil {
				config.Host = "https://127.0.0.1:1"
			}

			require.NoError(t, call(t, o, config))
			require.Empty(t, s.last(), "no API server issues one")
		})
	}

	broken := &rest.Config{Host: "https://127.0.0.1:1", ExecProvider: &clientcmdapi.ExecConfig{
		Command: "/does/not/exist", APIVersion: "client.authentication.k8s.io/v1",
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}
	o.Clock = clock.RealClock{}
	conn, err := connect.Dial(t.Context(), &o, broken, nil)
	require.NoError(t, err, "the server may need no token")
	require.Contains(t, conn.Where(), s.address+", without a token (get a token of service account "+
		"sharding-system/ringquery-reader for ringquery")
	require.Contains(t, conn.Where(), "/does/not/exist")
	require.NoError(t, conn.Close())

	o.Token = "given"
	require.NoError(t, call(t, o, nil))

	require.Equal(t, "Bearer given", s.last())
}

func TestValidate(t *testing.T) {
	for want, o := range map[string]connect.Options{
		"":                               {Endpoint: "[::1]:8090", Plaintext: true},
		"--plaintext excludes --ca-file": {Plaintext: true, CAFile: "a"},
		"tls-verify excludes --ca-file":  {Insecure: true, CAFile: "a"},
		`"a" is not NAMESPACE/NAME`:      {Account: "a"},
		`"a/b/c" is not NAMESPACE/NAME`:  {Account: "a/b/c"},
		`"/b" is not NAMESPACE/NAME`:     {Account: "/b"},
		`"localhost" is not host:port`:   {Endpoint: "localhost"},
		`"a:b" is not host:port`:         {Endpoint: "a:b"},
	} {
		err := o.Validate()
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want, fmt.Sprint(o))
		}
	}
}

func fromFile(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()

	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)

	return config
}

func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}
