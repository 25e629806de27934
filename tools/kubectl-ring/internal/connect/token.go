package connect

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

const (
	// readerAccount is the service account in the namespace of the Service that may query all rings.
	readerAccount = "ringquery-reader"
	// tokenLifetime is the lifetime of a token. A token is replaced after half of it, and ringquery ends connections earlier than the
	// other half, so that no stream outlives its token.
	tokenLifetime = time.Hour
	// tokenTimeout limits a request for a token.
	tokenTimeout = 10 * time.Second
)

// bearer sends a token with each call. It requests the tokens from the API server, for a service account and only for ringquery. It is safe
// for concurrent use.
type bearer struct {
	accounts      typedcorev1.ServiceAccountsGetter
	namespace     string
	account       string
	clock         clock.PassiveClock
	tls           bool // the token requires TLS
	mu            sync.Mutex
	authorization string
	renew         time.Time // zero: never
}

// bearer returns the credentials of calls. Nil: there is no cluster, and no token was given. It requests the first token, so that an error
// can be reported before the first call.
func (o *Options) bearer(ctx context.Context, config *rest.Config) (*bearer, error) {
	b := &bearer{clock: o.Clock, tls: !o.Plaintext, namespace: o.Namespace, account: readerAccount}

	switch {
	case o.Token != "":
		b.authorization = "Bearer " + o.Token
		return b, nil
	case config == nil:
		return nil, nil
	}

	if o.Account != "" {
		b.namespace, b.account, _ = strings.Cut(o.Account, "/")
	}

	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	b.accounts = client

	if err := b.request(ctx); err != nil {
		return nil, err
	}

	return b, nil
}

// request requests a token.
func (b *bearer) request(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()

	res, err := b.accounts.ServiceAccounts(b.namespace).CreateToken(ctx, b.account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{pb.TokenAudience}, ExpirationSeconds: new(int64(tokenLifetime / time.Second))},
	}, metav1.CreateOptions{})
	if err != nil {
		return failure.New("request permission to create serviceaccounts/token of it, or name another with --service-account",
			"get a token of service account %s/%s for ringquery: %w", b.namespace, b.account, err)
	}

	b.authorization, b.renew = "Bearer "+res.Status.Token, b.clock.Now().Add(tokenLifetime/2)

	return nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b *bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if !b.renew.IsZero() && !b.clock.Now().Before(b.renew) {
		if err := b.request(ctx); err != nil {
			return nil, err
		}
	}

	return map[string]string{"authorization": b.authorization}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b *bearer) RequireTransportSecurity() bool { return b.tls }
