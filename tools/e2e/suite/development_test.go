package suite_test

import (
	"context"
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
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/record"
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
	require.NoError(t, must.Attempt(func() { s.remains(t.Context()) }), "remove it first")

	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	require.NoError(t, development.Copy(t.Context(), s.root, tree))

	skaffold := development.Skaffold{Program: program, Dir: tree, Repository: registry(),
		Cache: filepath.Join(dir, "cache")}
	develop := func(steps func(*developer)) func(*testing.T) {
		return s.play(func(s *scene) { steps(&developer{scene: s, tree: tree, skaffold: skaffold}) })
	}
	t.Run("Render", develop((*developer).render))
	t.Run("Run", develop((*developer).install))
	t.Run("Dev", develop((*developer).dev))
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
	*scene

	tree     string
	skaffold development.Skaffold
}

// render prints every overlay: all images are those that skaffold builds, under tags of what they are made of.
func (d *developer) render() {
	overlays := must.Get(filepath.Glob(filepath.Join(d.tree, "deploy/overlays/*")))
	require.NotEmpty(d, overlays)

	commands := [][]string{nil}
	for _, overlay := range overlays {
		commands = append(commands, []string{"-p", filepath.Base(overlay)})
	}

	for _, args := range commands {
		out := d.run(append([]string{"render", "--digest-source=tag"}, args...)...)
		images := 0

		for line := range strings.Lines(out) {
			if image, ok := strings.CutPrefix(strings.TrimLeft(line, " -"), "image: "); ok {
				images++
				assert.Regexp(d, `:[0-9a-f]{64}$`, strings.TrimSpace(image), "%v: an image that skaffold does not build", args)
			}
		}
		assert.GreaterOrEqual(d, images, len(services), args)
		assert.Contains(d, out, "kind: CustomResourceDefinition", args)
	}
	d.Log("overlays rendered", len(overlays))
}

// run runs a command of skaffold and returns its output.
func (d *developer) run(args ...string) string { return must.Get(d.skaffold.Run(d.Context(), args...)) }

// install installs, installs again, which restarts nothing, and removes.
func (d *developer) install() {
	d.removed()

	began := record.Now()
	d.run("run")
	d.serve()
	d.Log("skaffold run: ready after", since(began))

	before := d.running("")
	d.run("run")
	d.serve()
	require.Equal(d, before, d.running(""), "skaffold run of what is installed")
	d.run("delete")
	must.Until(d.Context(), patience, d.remains)
}

// dev edits one service after the other: each is live within seconds, and nothing else restarts. Ctrl-C removes it all.
func (d *developer) dev() {
	d.removed()

	ctx := d.Context()
	session := must.Get(d.skaffold.Start(ctx, "-p", "development"))
	d.Cleanup(func() {
		_ = session.Interrupt()
		if d.Failed() {
			d.Log(session.Output.String())
		}
	})

	began := record.Now()
	d.watching(session, 1)
	d.serve()
	d.Rolled(ctx, cluster.Example.Shards())
	d.complete(cluster.Example, 3)
	d.Log("skaffold dev: ready after", since(began))

	for i, name := range services {
		before := d.running(name)
		d.edit(name)
		d.watching(session, 2+i)
		d.Rolled(ctx, service(name))
		require.Equal(d, before, d.running(name), "an edit of %s should replace and restart no other pod", name)
	}
	d.complete(cluster.Example, 3)

	// Ctrl-C takes away the example, and its ring as soon as that is let go. The services stay as long as there is a ring.
	began = record.Now()
	must.Do(session.Interrupt())
	must.Until(ctx, patience, d.ringless)
	d.Log("Ctrl-C: the ring is gone after", since(began))
	d.run("delete", "-p", "development")
	must.Until(ctx, patience, d.remains)
	d.Log("Ctrl-C, skaffold delete: all gone after", since(began))
}

// ringless demands that there is no ring.
func (d *developer) ringless(ctx context.Context) {
	rings, err := cluster.Command(ctx, "kubectl", "get", "clusterrings", "-o", "name")
	if err != nil && strings.Contains(err.Error(), "the server doesn't have a resource type") {
		return // the kind is gone, too
	}

	must.Do(err)
	must.None("there are still rings", strings.Fields(rings))
}

// watching waits until skaffold has deployed so many times.
func (d *developer) watching(session *development.Session, times int) {
	must.Until(d.Context(), 2*patience, func(context.Context) {
		err := session.Watching(times)
		require.NotErrorIs(d, err, development.ErrEnded)
		must.Do(err)
	})
}

// edit changes what the service says when it starts, and waits until every pod of it has said that.
func (d *developer) edit(name string) {
	mark := fmt.Sprintf("edited %s %d", name, record.Now())
	main := filepath.Join(d.tree, "services", name, "cmd", name, "main.go")
	source := must.Get(os.ReadFile(main)) //nolint:gosec // of the copy

	source = fmt.Appendf(source, "\nfunc init() { println(%q) }\n", mark)
	began := record.Now()
	must.Do(os.WriteFile(main, source, 0o600))

	first := time.Duration(0)
	must.Until(d.Context(), live, func(ctx context.Context) {
		pods := slices.DeleteFunc(d.Pods(ctx, service(name)), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		said := 0

		for _, p := range pods {
			log, err := d.Clients.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
			if err == nil && strings.Contains(string(log), mark) {
				said++
			}
		}

		if said > 0 && first == 0 {
			first = since(began)
		}

		must.Hold(said == len(pods) && said > 1, "of %d pods of %s %d run what was edited", len(pods), name, said)
	})
	d.Logf("edit of %s: the first pod runs it after %s, every pod after %s", name, first, since(began))
}

// running returns which containers run in the namespaces of the services and of the example: by pod, the identity of
// its container and how often it was restarted. It leaves out those of one service.
func (d *developer) running(without string) map[string]string {
	containers := map[string]string{}

	for _, namespace := range []string{system, cluster.Example.Namespace()} {
		var pods corev1.PodList
		must.Do(d.Client.List(d.Context(), &pods, client.InNamespace(namespace)))

		for _, p := range pods.Items {
			if p.Labels["app.kubernetes.io/name"] == without && namespace == system {
				continue
			}
			require.Len(d, p.Status.ContainerStatuses, 1, p.Name)
			status := p.Status.ContainerStatuses[0]
			containers[namespace+"/"+p.Name] = fmt.Sprintf("%s, %d restarts", status.ContainerID, status.RestartCount)
		}
	}
	require.NotEmpty(d, containers)

	return containers
}

// removed has removed at the end what a test that failed has left, the ring first.
func (d *developer) removed() {
	d.finally(func(ctx context.Context) {
		if !d.Failed() || d.kept() {
			return
		}

		if must.Attempt(func() { d.ringless(ctx) }) != nil {
			d.Kubectl(ctx, "delete", "clusterrings", "--all", "--timeout=60s")
		}

		must.Get(d.skaffold.Run(ctx, "delete", "-p", "development"))
	})
}
