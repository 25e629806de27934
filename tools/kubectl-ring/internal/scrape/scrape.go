// Package scrape reads the metrics that processes serve over HTTP: at URLs, or in pods through the API server.
//
// The credentials of the kubeconfig are for the API server alone: [URLs] send none, or the token of a file, to servers
// that are verified. Answers are bounded in size and time. Redirects are not followed, because a token would follow
// them.
package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/advise"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/connect"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

const (
	// maxPage is how much of an answer is read, in bytes. A process with 100,000 series stays below.
	maxPage = 32 << 20
	// accept asks for protocol buffers, which have native histograms, or else for text.
	accept = string(expfmt.FmtProtoDelim) + `;q=0.7,` + string(expfmt.FmtText) + `;q=0.3`
)

// Target is a process whose metrics can be read.
type Target struct {
	// Name is the process for people.
	Name string
	// CPULimit is how many cores the process may use. 0: unknown.
	CPULimit float64

	url    string
	client *http.Client
}

// client returns an HTTP client that follows no redirects. config has a timeout.
func client(config *rest.Config) (*http.Client, error) {
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, failure.New("check the kubeconfig, or the flags about certificates", "make a client: %w", err)
	}

	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	return c, nil
}

// URLs returns the processes that serve their metrics at the URLs. A URL without a path stands for /metrics. config is
// how the servers are verified, and tokenFile contains a bearer token for them; empty: none is sent.
func URLs(all []string, config *rest.Config, tokenFile string) ([]Target, error) {
	if tokenFile != "" {
		token, err := os.ReadFile(tokenFile) // once: it may be a pipe
		if err != nil {
			return nil, failure.New("name a file that you can read", "--token-file: %w", err)
		}

		config.BearerToken = strings.TrimSpace(string(token))
	}

	c, err := client(config)
	if err != nil {
		return nil, err
	}

	var targets []Target

	for _, text := range all {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
			return nil, failure.New("write it as in http://127.0.0.1:8080/metrics", "--metrics: %q is no URL of a metrics page",
				text)
		}

		if tokenFile != "" && !connect.Loopback(u.Hostname()) && (u.Scheme != "https" || config.Insecure) {
			return nil, failure.New("use https and --ca-file, or omit --token-file",
				"--token-file: the token is sent to another machine, %s, only if its certificate is verified", u.Host)
		}

		if strings.Trim(u.Path, "/") == "" {
			u.Path = "/metrics"
		}

		targets = append(targets, Target{Name: text, url: u.String(), client: c})
	}

	return targets, nil
}

// Pods selects pods.
type Pods struct {
	// Namespace is that of the pods. Selector is a label selector. Port is the number or the name of a container's port.
	Namespace, Selector, Port string
}

// Find returns the processes in the pods that are ready. They are read through the API server.
func (p *Pods) Find(ctx context.Context, config *rest.Config) ([]Target, error) {
	c, err := client(config)
	if err != nil {
		return nil, err
	}

	core, err := typedcorev1.NewForConfigAndClient(config, c)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	list, err := core.Pods(p.Namespace).List(ctx, metav1.ListOptions{LabelSelector: p.Selector})
	if err != nil {
		return nil, failure.New(permissions, "list the pods of namespace %s: %w", p.Namespace, err)
	}

	var targets []Target

	for i := range list.Items {
		pod := &list.Items[i]
		if !connect.IsReady(pod) {
			continue
		}

		number, limit := portOf(pod, p.Port)
		where := core.RESTClient().Get().Namespace(p.Namespace).Resource("pods").Name(pod.Name + ":" +
			number).SubResource("proxy").Suffix("metrics").URL()
		targets = append(targets, Target{Name: "pod " + pod.Name, CPULimit: limit, url: where.String(), client: c})
	}

	if len(targets) == 0 {
		return nil, failure.New(fmt.Sprintf("see why: kubectl get pods -n %s -l %s", p.Namespace, p.Selector),
			"of %d pods in namespace %s with the labels %s, none is ready", len(list.Items), p.Namespace, p.Selector)
	}

	return targets, nil
}

const permissions = "check the kubeconfig (--context), and request the permissions to list pods and to get " +
	"pods/proxy in the namespace. Or use kubectl port-forward, " +
	"and --metrics with the local port"

// portOf returns the number of a pod's port, and the CPU limit of the container that has it. 0: the limit is not known.
func portOf(pod *corev1.Pod, port string) (number string, limit float64) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]

		for _, p := range c.Ports {
			if has := strconv.Itoa(int(p.ContainerPort)); p.Name == port || has == port {
				return has, c.Resources.Limits.Cpu().AsApproximateFloat64()
			}
		}
	}

	if all := pod.Spec.Containers; len(all) == 1 { // ports need not be declared
		limit = all[0].Resources.Limits.Cpu().AsApproximateFloat64()
	}

	return port, limit
}

// Read reads the metrics.
func (t *Target) Read(ctx context.Context) (page advise.Page, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}

	req.Header.Set("Accept", accept)

	res, err := t.client.Do(req)
	if err != nil {
		return nil, failure.New("check the address, that the process runs, and how its certificate is verified: --ca-file, "+
			"--server-name, --insecure-skip-tls-verify",
			"read the metrics of %s: %w", t.Name, err)
	}
	defer func() { _ = res.Body.Close() }() // it was read

	body, err := io.ReadAll(io.LimitReader(res.Body, maxPage))
	if err == nil {
		page, err = parse(res, body)
	}

	return page, failure.In("read the metrics of "+t.Name, err)
}

// parse returns the metric families of an answer, which may be that of the API server instead of the process.
func parse(res *http.Response, body []byte) (advise.Page, error) {
	var status metav1.Status

	do := "check that it is the metrics page of a controller, its path and its port"

	switch refused := res.StatusCode != http.StatusOK; {
	case refused && json.Unmarshal(body, &status) == nil && status.Reason == metav1.StatusReasonForbidden:
		return nil, failure.New(permissions, "the API server answered: %s", status.Message)
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		do = "the metrics are protected: use kubectl port-forward, and --metrics https://... --token-file FILE with a " +
			"token that may get the URL /metrics"

		fallthrough
	case refused:
		return nil, failure.New(do, "the answer is %s: %s", res.Status, body[:min(len(body), 200)])
	}

	page := advise.Page{}
	decoder := expfmt.NewDecoder(bytes.NewReader(body), expfmt.ResponseFormat(res.Header))

	for {
		family := &dto.MetricFamily{}

		switch err := decoder.Decode(family); {
		case errors.Is(err, io.EOF):
			return page, nil
		case err != nil:
			return nil, failure.New(do, "the answer is no metrics page: %w", err)
		}

		page[family.GetName()] = family
	}
}
