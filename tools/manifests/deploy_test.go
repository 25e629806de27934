package manifests_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/clusterring/clusterring/tools/manifests"
)

// root is that of the repository.
const root = "../.."

// programs are the images of the Deployments and StatefulSets, and where the programs in them come from.
var programs = map[string]string{
	"leasemonitor": "./services/leasemonitor/cmd/leasemonitor",
	"assigner":     "./services/assigner/cmd/assigner",
	"rebalancer":   "./services/rebalancer/cmd/rebalancer",
	"ringquery":    "./services/ringquery/cmd/ringquery",
	"example":      "./tools/example/cmd/example",
}

// binaries builds the programs once, and returns the directory they are in.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "manifests-")
	if err != nil {
		return "", err
	}

	built = dir
	for name, path := range programs {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), path)
		build.Dir = root

		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return "", err
		}
	}

	return dir, nil
})

// built is the directory of the binaries, "" until they are needed.
var built string

func TestMain(m *testing.M) {
	code := m.Run()

	if err := os.RemoveAll(built); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// eachKustomization runs check on what every kustomization of deploy/ that has Deployments puts on a cluster.
func eachKustomization(t *testing.T, check func(t *testing.T, in *manifests.Installation)) {
	t.Helper()

	dirs, err := manifests.Find(filepath.Join(root, "deploy"))
	require.NoError(t, err)
	require.Greater(t, len(dirs), 10)

	for _, dir := range dirs {
		t.Run(strings.TrimPrefix(dir, root+"/"), func(t *testing.T) {
			objects, err := manifests.Build(dir)
			require.NoError(t, err)
			require.NotEmpty(t, objects)
			in, err := manifests.Read(objects)
			require.NoError(t, err)
			check(t, in)
		})
	}
}

// TestPodsAreHardened: as restricted as it gets, probed, with requests and limits, and with the time to stop that they
// need.
func TestPodsAreHardened(t *testing.T) {
	eachKustomization(t, func(t *testing.T, in *manifests.Installation) {
		t.Helper()

		for _, d := range in.Deployments {
			problems, err := manifests.Problems(d)
			require.NoError(t, err)
			require.Empty(t, problems, d.Name)
		}
	})
}

// TestNothingDangles: selectors find pods, ports have names that pods know, rights go to accounts that are there.
func TestNothingDangles(t *testing.T) {
	objects, err := manifests.Build(filepath.Join(root, "deploy", "base"))
	require.NoError(t, err)
	base, err := manifests.Read(objects)
	require.NoError(t, err)

	eachKustomization(t, func(t *testing.T, in *manifests.Installation) {
		t.Helper()

		if len(in.Deployments) == 1 && !strings.HasPrefix(in.Deployments[0].Namespace, "example") {
			t.Skip("a part of deploy/base, whose namespace is elsewhere")
		}

		if len(in.Deployments) == 1 {
			in.Beside(base)
		}
		require.Empty(t, in.Dangling())
	})
}

// TestProgramsTakeTheirArguments runs each program with the arguments of its Deployment, and a kubeconfig that does not
// exist, which it sees after it has judged all else.
func TestProgramsTakeTheirArguments(t *testing.T) {
	dir, err := binaries()
	require.NoError(t, err)
	eachKustomization(t, func(t *testing.T, in *manifests.Installation) {
		t.Helper()

		for _, d := range in.Deployments {
			c := d.Spec.Template.Spec.Containers[0]
			require.Contains(t, programs, image(d), d.Name)
			command := exec.Command(filepath.Join(dir, image(d)), append(c.Args, "--kubeconfig=/does/not/exist")...) //nolint:gosec // built above
			output, err := command.CombinedOutput()
			require.Error(t, err)
			// A port may be taken on the machine of the test; the arguments were judged before.
			require.Regexp(t, `/does/not/exist|cannot listen on`, string(output), "%s %v", d.Name, c.Args)
		}
	})
}

func image(d *appsv1.Deployment) string {
	return strings.TrimPrefix(d.Spec.Template.Spec.Containers[0].Image, "clusterring/")
}

func help(t *testing.T, program string) string {
	t.Helper()

	dir, err := binaries()
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	output, err := exec.CommandContext(ctx, filepath.Join(dir, program), "--help").Output() //nolint:gosec // built above
	require.NoError(t, err)

	return string(output)
}

// TestGuardCoversTheBase: all that deploy/base installs carries the label that the policy against an early removal
// selects, and is of a kind that it names; policies are the exception, for no policy is asked about policies.
func TestGuardCoversTheBase(t *testing.T) {
	objects, err := manifests.Build(filepath.Join(root, "deploy/base"))
	require.NoError(t, err)

	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "ValidatingAdmissionPolicy" && o.GetName() == "removal.sharding.timebertt.dev"
	})
	require.NotEqual(t, -1, i, "there is no guard")

	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objects[i].Object, &policy,
		true))
	match := policy.Spec.MatchConstraints

	for _, o := range objects {
		for key, value := range match.ObjectSelector.MatchLabels {
			require.Equal(t, value, o.GetLabels()[key], "label %s of %s %s", key, o.GetKind(), o.GetName())
		}

		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		covered := slices.ContainsFunc(match.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
			return slices.Contains(r.APIGroups, resource.Group) && slices.Contains(r.Resources, resource.Resource) &&
				slices.Contains(r.Operations, admissionregistrationv1.Delete)
		})
		require.Equal(t, resource.Group != admissionregistrationv1.GroupName, covered, "%s %s", o.GetKind(), o.GetName())
	}
}

// assigner returns what the base has.
func assigner(t *testing.T) (*manifests.Installation, *appsv1.Deployment) {
	t.Helper()

	objects, err := manifests.Build(root + "/deploy/base")
	require.NoError(t, err)
	in, err := manifests.Read(objects)
	require.NoError(t, err)

	for _, d := range in.Deployments {
		if d.Name == "assigner" {
			return in, d
		}
	}
	require.Fail(t, "there is no assigner")

	return nil, nil
}

// TestProblems spoils a good Deployment in every way that is looked for.
func TestProblems(t *testing.T) {
	type (
		podSpec   = corev1.PodSpec
		container = corev1.Container
	)

	for want, spoil := range map[string]func(*podSpec, *container){
		"Pod Security: runAsNonRoot":   func(p *podSpec, _ *container) { p.SecurityContext.RunAsNonRoot = nil },
		"whether it wants the token":   func(p *podSpec, _ *container) { p.AutomountServiceAccountToken = nil },
		"service account of everybody": func(p *podSpec, _ *container) { p.ServiceAccountName = "" },
		"nothing spreads":              func(p *podSpec, _ *container) { p.TopologySpreadConstraints = nil },
		"wait rather than share": func(p *podSpec, _ *container) {
			p.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.DoNotSchedule
		},
		"killed before its flags let it stop (30s)": func(p *podSpec, _ *container) {
			p.TerminationGracePeriodSeconds = new(int64(30))
		},
		"no startup probe":             func(_ *podSpec, c *container) { c.StartupProbe = nil },
		"no liveness probe":            func(_ *podSpec, c *container) { c.LivenessProbe = nil },
		"no readiness probe":           func(_ *podSpec, c *container) { c.ReadinessProbe = nil },
		"no request for the processor": func(_ *podSpec, c *container) { delete(c.Resources.Requests, "cpu") },
		"no request for memory":        func(_ *podSpec, c *container) { delete(c.Resources.Requests, "memory") },
		"no limit of memory":           func(_ *podSpec, c *container) { delete(c.Resources.Limits, "memory") },
		"is throttled": func(_ *podSpec, c *container) {
			c.Resources.Limits[corev1.ResourceCPU] = c.Resources.Requests[corev1.ResourceCPU]
		},
		"no read-only root": func(_ *podSpec, c *container) { c.SecurityContext.ReadOnlyRootFilesystem = nil },
		"no GOMEMLIMIT":     func(_ *podSpec, c *container) { c.Env = nil },
	} {
		t.Run(want, func(t *testing.T) {
			_, d := assigner(t)
			spoil(&d.Spec.Template.Spec, &d.Spec.Template.Spec.Containers[0])
			problems, err := manifests.Problems(d)
			require.NoError(t, err)
			require.Contains(t, strings.Join(problems, "\n"), want)
		})
	}
}

// TestDangling breaks what holds a good installation together.
func TestDangling(t *testing.T) {
	for want, spoil := range map[string]func(d *appsv1.Deployment){
		"no service account sharding-system/other": func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.ServiceAccountName = "other"
		},
		"assigner does not select its own pods": func(d *appsv1.Deployment) { d.Spec.Selector.MatchLabels["more"] = "x" },
		"assigner has 0 PodDisruptionBudgets": func(d *appsv1.Deployment) {
			d.Spec.Template.Labels["app.kubernetes.io/name"] = "other"
		},
		"PodDisruptionBudget assigner selects no pods": func(d *appsv1.Deployment) { d.Spec.Template.Labels = nil },
		`Service assigner: no pod has a port "webhook"`: func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Ports[0].Name = "hook"
		},
		"namespace elsewhere does not enforce": func(d *appsv1.Deployment) { d.Namespace = "elsewhere" },
	} {
		t.Run(want, func(t *testing.T) {
			in, d := assigner(t)
			require.Empty(t, in.Dangling())
			spoil(d)
			require.Contains(t, strings.Join(in.Dangling(), "\n"), want)
		})
	}
}

// TestSkaffoldBuildsWhatChanged: every file that a program is made of makes skaffold build its image, and no file of
// another service does.
func TestSkaffoldBuildsWhatChanged(t *testing.T) {
	artifacts := map[string]manifests.Artifact{}

	for _, c := range skaffold(t) {
		for _, a := range c.Build.Artifacts {
			artifacts[strings.TrimPrefix(a.Image, "clusterring/")] = a
		}

		for _, p := range c.Profiles {
			for _, patch := range p.Patches {
				artifacts[strings.TrimPrefix(patch.Value.Image, "clusterring/")] = patch.Value
			}
		}
	}

	top, err := filepath.Abs(root)
	require.NoError(t, err)

	for name, main := range programs {
		a := artifacts[name]
		require.Equal(t, main, a.Ko.Main)

		files := []string{"go.work", ".ko.yaml"}
		list := exec.Command("go", "list", "-deps", "-f", `{{if not .Standard}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{if .Module}}{{.Module.GoMod}}
{{end}}{{end}}`, main)
		list.Dir = root
		output, err := list.Output()
		require.NoError(t, err)

		for file := range strings.FieldsSeq(string(output)) {
			if relative, ok := strings.CutPrefix(file, top+"/"); ok {
				files = append(files, relative)
			}
		}
		require.Greater(t, len(files), 10)

		for _, file := range files {
			require.True(t, a.Watches(file), "an edit of %s does not build the image of %s anew", file, name)
		}

		for other := range programs {
			if other != name {
				require.False(t, a.Watches(strings.TrimPrefix(programs[other], "./")+"/main.go"),
					"an edit of %s builds the image of %s anew", other, name)
			}
		}
		require.False(t, a.Watches("pkg/shard/shard_test.go"), "an edit of a test builds the image of %s anew", name)
	}
}

// TestSkaffoldDeploysEveryOverlay: the images are built that the base needs, alone and with each component, and those
// that each overlay needs, which has a profile.
func TestSkaffoldDeploysEveryOverlay(t *testing.T) {
	overlays, err := filepath.Glob(filepath.Join(root, "deploy/overlays/*"))
	require.NoError(t, err)
	components, err := filepath.Glob(filepath.Join(root, "deploy/components/*"))
	require.NoError(t, err)
	require.NotEmpty(t, components)

	configs := skaffold(t)
	config := configs[slices.IndexFunc(configs, func(c manifests.Config) bool { return c.Metadata.Name == "clusterring" })]
	require.Equal(t, []string{"deploy/base"}, config.Manifests.Kustomize.Paths)
	require.Len(t, config.Profiles, len(overlays))

	var base []string
	for _, a := range config.Build.Artifacts {
		base = append(base, a.Image)
	}

	objects, err := manifests.Combine(root, nil)
	requireImages(t, base, objects, err)

	for _, component := range components {
		objects, err := manifests.Combine(root, nil, filepath.Base(component))
		requireImages(t, base, objects, err)
	}

	for _, p := range config.Profiles {
		require.Equal(t, []string{"deploy/overlays/" + p.Name}, p.Manifests.Kustomize.Paths)

		images := slices.Clone(base)

		for _, patch := range p.Patches {
			require.Equal(t, []string{"add", "/build/artifacts/-"}, []string{patch.Op, patch.Path})
			images = append(images, patch.Value.Image)
		}

		objects, err := manifests.Build(filepath.Join(root, "deploy/overlays", p.Name))
		requireImages(t, images, objects, err)
	}
}

// requireImages requires that the Deployments have no other images than the given ones.
func requireImages(t *testing.T, images []string, objects []*unstructured.Unstructured, err error) {
	t.Helper()
	require.NoError(t, err)
	in, err := manifests.Read(objects)
	require.NoError(t, err)
	require.NotEmpty(t, in.Deployments)

	for _, d := range in.Deployments {
		require.Contains(t, images, d.Spec.Template.Spec.Containers[0].Image)
	}
}

func skaffold(t *testing.T) []manifests.Config {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(root, "skaffold.yaml"))
	require.NoError(t, err)
	configs, err := manifests.ReadSkaffold(content)
	require.NoError(t, err)
	require.Len(t, configs, 2)

	return configs
}
