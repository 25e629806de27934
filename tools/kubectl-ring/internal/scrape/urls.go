package scrape

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/connect"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// Trust is how servers at URLs are verified, and what they get. The zero value verifies them with the CA certificates of this machine, and
// sends no token.
type Trust struct {
	// CAFile is a PEM file with the CA certificates for the servers. Empty: those of this machine.
	CAFile string
	// ServerName is the name that certificates must have. Empty: the host of the URL.
	ServerName string
	// Insecure accepts any certificate.
	Insecure bool
	// TokenFile contains a bearer token. Empty: none is sent.
	TokenFile string
	// UserAgent is the name of the client.
	UserAgent string
}

// URLs returns the processes that serve their metrics at the URLs. A URL without a path stands for /metrics. Call the returned function when
// they have been read.
func URLs(all []string, trust Trust) (targets []Target, done func(), err error) {
	secure, err := trust.config()
	if err != nil {
		return nil, nil, err
	}

	token, err := trust.token()
	if err != nil {
		return nil, nil, err
	}

	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, MaxResponseHeaderBytes: 1 << 20, ForceAttemptHTTP2: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	known := map[string]bool{}

	for _, text := range all {
		u, err := parseURL(text)
		if err != nil {
			return nil, nil, err
		}

		if known[u.String()] {
			return nil, nil, failure.New("name each process once", "--metrics %s is there twice", u)
		}

		known[u.String()] = true

		if token != "" && !connect.Loopback(u.Hostname()) && (u.Scheme != "https" || trust.Insecure) {
			return nil, nil, failure.New("use https and --ca-file, or omit --token-file",
				"--token-file: the token is sent to another machine, %s, only if its certificate is verified", u.Host)
		}

		targets = append(targets, Target{Name: u.Host, get: func(ctx context.Context) (*answer, error) {
			return get(ctx, client, u, headers{token, trust.UserAgent})
		}})
	}

	// Several pages of one server differ in their path.
	names := map[string]int{}
	for _, t := range targets {
		names[t.Name]++
	}

	for i, text := range all {
		if u, err := parseURL(text); err == nil && names[u.Host] > 1 {
			targets[i].Name = u.Host + u.Path
		}
	}

	return targets, transport.CloseIdleConnections, nil
}

// headers are those of a request.
type headers struct{ token, userAgent string }

func get(ctx context.Context, client *http.Client, u *url.URL, h headers) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}

	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", h.userAgent)

	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}

	res, err := client.Do(req)
	if err != nil {
		return nil, failure.New(unreached(err, u), "%w", err)
	}
	defer func() { _ = res.Body.Close() }() // it was read

	body, err := limited(res.Body)
	if err != nil {
		return nil, err
	}

	return &answer{res.StatusCode, res.Header, body}, nil
}

// unreached returns advice for a request without an answer.
func unreached(err error, u *url.URL) string {
	switch text := err.Error(); {
	case strings.Contains(text, "x509:"):
		return "verify the server with --ca-file (and --server-name) or, if you trust the connection, use --insecure-skip-tls-verify"
	case strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return "the server does not use TLS: use http://" + u.Host
	case strings.Contains(text, "malformed HTTP response"):
		return "the server does not speak HTTP, or it uses TLS: use https://" + u.Host
	default:
		return "check the address, and that the process runs. For a pod: --pods SELECTOR, or kubectl port-forward"
	}
}

// parseURL returns the URL of a metrics page.
func parseURL(text string) (*url.URL, error) {
	const do = "write it as in http://127.0.0.1:8080/metrics"

	u, err := url.Parse(text)

	switch {
	case err != nil:
		return nil, failure.New(do, "--metrics: %w", err)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, failure.New(do, "--metrics %q does not begin with http:// or https://", text)
	case u.Hostname() == "":
		return nil, failure.New(do, "--metrics %q has no host", text)
	case u.User != nil:
		return nil, failure.New("use --token-file", "--metrics: a user in a URL is not supported")
	case u.Fragment != "":
		return nil, failure.New(do, "--metrics %q has a fragment", text)
	case u.Path == "" || u.Path == "/":
		u.Path = "/metrics"
	}

	return u, nil
}

// config returns the TLS configuration.
func (t Trust) config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.Insecure}
	if t.CAFile == "" {
		return config, nil
	}

	data, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, failure.New("name a PEM file that you can read", "--ca-file: %w", err)
	}

	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(data) {
		return nil, failure.New("put PEM certificates into it", "--ca-file %s holds no certificate", t.CAFile)
	}

	return config, nil
}

// token returns the token in the file. Empty: there is none.
func (t Trust) token() (string, error) {
	if t.TokenFile == "" {
		return "", nil
	}

	data, err := os.ReadFile(t.TokenFile)
	if err != nil {
		return "", failure.New("name a file that you can read", "--token-file: %w", err)
	}

	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", failure.New("write the token alone into it", "--token-file %s holds no bearer token", t.TokenFile)
	}

	return token, nil
}
