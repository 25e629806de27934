package suite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/development"
)

// live is how long an edit may take until it runs. It takes seconds; machines differ.
const live = 3 * time.Minute

// TestDevelopment has skaffold install, follow edits and remove, each as docs/installation.md says, with a copy of the
// source. It needs a cluster that has nothing of ClusterRing, and skaffold.
func TestDevelopment(t *testing.T) {
	s := begin(t)

	program := os.Getenv("E2E_SKAFFOLD")
	if program == "" {
		program = "skaffold"
	}

	program, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("there is no skaffold: put it on PATH, or let E2E_SKAFFOLD name it (%v)", err)
	}

	if s.reuse {
		t.Skip("E2E_REUSE is set: skaffold would replace what is installed")
	}
	require.NoError(t, s.remains(t.Context()), "remove it first")

	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	require.NoError(t, development.Copy(t.Context(), s.root, tree))
	d := &developer{suite: s, tree: tree, skaffold: development.Skaffold{
		Program: program, Dir: tree, Repository: registry(), Cache: filepath.Join(dir, "cache"),
	}}
	t.Run("Render", d.render)
	t.Run("Run", d.run)
	t.Run("Dev", d.dev)
}

// registry returns where images go. The images of a kind cluster go there without one.
func registry() string {
	if repository := os.Getenv("E2E_IMAGE_REPO"); !strings.HasPrefix(repository, "kind.local") {
		return repository
	}

	return ""
}

// developer is somebody who works on a copy of the source.
type developer struct {
	*suite

	tree     string
	skaffold development.Skaffold
}

// render prints every overlay: all images are those that skaffold builds, under tags of what they are made of.
func (d *developer) render(t *testing.T) {
	overlays, err := filepath.Glob(filepath.Join(d.tree, "deploy/overlays/*"))
	require.NoError(t, err)
	require.NotEmpty(t, overlays)

	commands := [][]string{nil}
	for _, overlay := range overlays {
		commands = append(commands, []string{"-p", filepath.Base(overlay)})
	}

	for _, args := range commands {
		out, err := d.skaffold.Run(t.Context(), append([]string{"render", "--digest-source=tag"}, args...)...)
		require.NoError(t, err)

		images := 0

		for line := range strings.Lines(out) {
			if image, ok := strings.CutPrefix(strings.TrimLeft(line, " -"), "image: "); ok {
				images++
				assert.Regexp(t, `:[0-9a-f]{64}$`, strings.TrimSpace(image), "%v: an image that skaffold does not build", args)
			}
		}
		assert.GreaterOrEqual(t, images, len(services), args)
		assert.Contains(t, out, "kind: CustomResourceDefinition", args)
	}
	t.Log("overlays rendered", len(overlays))
}

// run installs, installs again, which restarts nothing, and removes.
func (d *developer) run(t *testing.T) {
	t.Cleanup(d.remove(t))
	began := d.Clock.Now()
	_, err := d.skaffold.Run(t.Context(), "run")
	require.NoError(t, err)

	for _, name := range services {
		require.NoError(t, d.Rolled(t.Context(), service(name), patience))
	}
	t.Log("skaffold run: ready after", d.Clock.Since(began).Round(time.Second))

	before := d.running(t, "")
	_, err = d.skaffold.Run(t.Context(), "run")
	require.NoError(t, err)

	for _, name := range services {
		require.NoError(t, d.Rolled(t.Context(), service(name), patience))
	}
	require.Equal(t, before, d.running(t, ""), "skaffold run of what is installed")

	_, err = d.skaffold.Run(t.Context(), "delete")
	require.NoError(t, err)
	require.NoError(t, d.Until(t.Context(), patience, d.remains))
}

// dev edits one service after the other: each is live within seconds, and nothing else restarts. Ctrl-C removes it all.
func (d *developer) dev(t *testing.T) {
	t.Cleanup(d.remove(t))
	ctx := t.Context()
	session, err := d.skaffold.Start(ctx, "-p", "development")
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = session.Interrupt()
		if t.Failed() {
			t.Log(session.Output.String())
		}
	})

	began := d.Clock.Now()
	d.watching(t, session, 1)

	for _, name := range services {
		require.NoError(t, d.Rolled(ctx, service(name), patience))
	}
	require.NoError(t, d.Rolled(ctx, cluster.Example.Shards, patience))
	d.complete(t, cluster.Example, 3)
	t.Log("skaffold dev: ready after", d.Clock.Since(began).Round(time.Second))

	for i, name := range services {
		before := d.running(t, name)
		d.edit(t, name)
		d.watching(t, session, 2+i)
		require.NoError(t, d.Rolled(ctx, service(name), patience))
		after := d.running(t, name)
		require.Equal(t, before, after, "an edit of %s should replace and restart no other pod", name)
	}
	d.complete(t, cluster.Example, 3)

	// Ctrl-C takes away the example, and its ring as soon as that is let go. The services stay as long as there is a ring.
	began = d.Clock.Now()
	require.NoError(t, session.Interrupt())
	require.NoError(t, d.Until(ctx, patience, d.ringless))
	t.Log("Ctrl-C: the ring is gone after", d.Clock.Since(began).Round(100*time.Millisecond))
	_, err = d.skaffold.Run(ctx, "delete", "-p", "development")
	require.NoError(t, err)
	require.NoError(t, d.Until(ctx, patience, d.remains))
	t.Log("Ctrl-C, skaffold delete: all gone after", d.Clock.Since(began).Round(time.Second))
}

// ringless returns an error as long as there is a ring.
func (d *developer) ringless(ctx context.Context) error {
	// The kind may be gone, too.
	rings, err := d.Kubectl(ctx, "get", "clusterrings", "-o", "name")
	if err != nil && strings.Contains(err.Error(), "the server doesn't have a resource type") {
		return nil
	}

	if rings = strings.TrimSpace(rings); rings != "" {
		return fmt.Errorf("there is still %s", rings)
	}

	return err
}

// watching waits until skaffold has deployed so many times.
func (d *developer) watching(t *testing.T, session *development.Session, times int) {
	t.Helper()
	require.NoError(t, d.Until(t.Context(), 2*patience, func(context.Context) error {
		err := session.Watching(times)
		if errors.Is(err, development.ErrEnded) {
			require.NoError(t, err)
		}

		return err
	}))
}

// edit changes what the service says when it starts, and waits until every pod of it has said that.
func (d *developer) edit(t *testing.T, name string) {
	t.Helper()

	mark := fmt.Sprintf("edited %s %d", name, d.Clock.Now().UnixNano())
	main := filepath.Join(d.tree, "services", name, "cmd", name, "main.go")
	source, err := os.ReadFile(main) //nolint:gosec // of the copy
	require.NoError(t, err)

	source = fmt.Appendf(source, "\nfunc init() { println(%q) }\n", mark)
	began := d.Clock.Now()
	require.NoError(t, os.WriteFile(main, source, 0o600))

	first := time.Duration(0)
	require.NoError(t, d.Until(t.Context(), live, func(ctx context.Context) error {
		pods, err := d.Pods(ctx, service(name))
		if err != nil {
			return err
		}

		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		said := 0

		for _, p := range pods {
			log, err := d.Clients.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
			if err == nil && strings.Contains(string(log), mark) {
				said++
			}
		}

		if said > 0 && first == 0 {
			first = d.Clock.Since(began)
		}

		if said < len(pods) || said < 2 {
			return fmt.Errorf("of %d pods of %s %d run what was edited", len(pods), name, said)
		}

		return nil
	}))
	all := d.Clock.Since(began)
	t.Log("edit of "+name+": the first pod runs it after", first.Round(100*time.Millisecond))
	t.Logf("edit of %s: every pod runs it after %s", name, all.Round(100*time.Millisecond))
	require.LessOrEqual(t, all, live)
}

// running returns which containers run in the namespaces of the services and of the example: by pod, the identity of
// its container and how often it was restarted. It leaves out those of one service.
func (d *developer) running(t *testing.T, without string) map[string]string {
	t.Helper()

	containers := map[string]string{}

	for _, namespace := range []string{system, cluster.Example.Namespace()} {
		var pods corev1.PodList
		require.NoError(t, d.Client.List(t.Context(), &pods, client.InNamespace(namespace)))

		for _, p := range pods.Items {
			if p.Labels["app.kubernetes.io/name"] == without && namespace == system {
				continue
			}
			require.Len(t, p.Status.ContainerStatuses, 1, p.Name)
			status := p.Status.ContainerStatuses[0]
			containers[namespace+"/"+p.Name] = fmt.Sprintf("%s, %d restarts", status.ContainerID, status.RestartCount)
		}
	}
	require.NotEmpty(t, containers)

	return containers
}

// remove returns a function that removes what a test that failed has left, the ring first.
func (d *developer) remove(t *testing.T) func() {
	t.Helper()

	return func() {
		ctx := context.WithoutCancel(t.Context())
		if !t.Failed() || os.Getenv("E2E_KEEP") != "" {
			return
		}

		if d.ringless(ctx) != nil {
			_, err := d.Kubectl(ctx, "delete", "clusterrings", "--all", "--timeout=60s")
			assert.NoError(t, err)
		}

		_, err := d.skaffold.Run(ctx, "delete", "-p", "development")
		assert.NoError(t, err)
	}
}
