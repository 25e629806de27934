package manifests_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

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

// build returns what a kustomization puts on a cluster.
func build(t *testing.T, dir string) *installation {
	t.Helper()

	objects, err := manifests.Build(filepath.Join(root, dir))
	require.NoError(t, err)
	require.NotEmpty(t, objects)

	return read(t, objects)
}

// eachKustomization runs check on what every kustomization of deploy/ puts on a cluster, except components, which
// cannot be built alone.
func eachKustomization(t *testing.T, check func(t *testing.T, in *installation)) {
	t.Helper()

	count := 0

	for _, pattern := range []string{"*", "*/*", "*/*/*"} {
		files, err := filepath.Glob(filepath.Join(root, "deploy", pattern, "kustomization.yaml"))
		require.NoError(t, err)

		for _, file := range files {
			if dir := strings.TrimPrefix(filepath.Dir(file), root+"/"); !strings.HasPrefix(dir, "deploy/components/") {
				count++

				t.Run(dir, func(t *testing.T) { check(t, build(t, dir)) })
			}
		}
	}

	require.Greater(t, count, 10)
}

// TestPodsAreHardened: as restricted as it gets, probed, with requests and limits, and with the time to stop that they
// need.
func TestPodsAreHardened(t *testing.T) {
	eachKustomization(t, func(t *testing.T, in *installation) {
		t.Helper()

		for _, d := range in.deployments {
			require.Empty(t, problems(t, d), d.Name)
		}
	})
}

// TestNothingDangles: selectors find pods, ports have names that pods know, rights go to accounts that are there.
func TestNothingDangles(t *testing.T) {
	base := build(t, "deploy/base")

	eachKustomization(t, func(t *testing.T, in *installation) {
		t.Helper()

		switch {
		case len(in.deployments) != 1:
			require.Empty(t, in.dangling())
		case strings.HasPrefix(in.deployments[0].Namespace, "example"):
			require.Empty(t, in.dangling(base.objects...))
		default:
			t.Skip("a part of deploy/base, whose namespace is elsewhere")
		}
	})
}

// TestProgramsTakeTheirArguments runs each program with the arguments of its Deployment, and a kubeconfig that does not
// exist, which it sees after it has judged all else.
func TestProgramsTakeTheirArguments(t *testing.T) {
	dir, err := binaries()
	require.NoError(t, err)
	eachKustomization(t, func(t *testing.T, in *installation) {
		t.Helper()

		for _, d := range in.deployments {
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
	in := build(t, "deploy/base")
	policies := typed[admissionregistrationv1.ValidatingAdmissionPolicy](t, in.objects, "ValidatingAdmissionPolicy")
	i := slices.IndexFunc(policies, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
		return p.Name == "removal.sharding.timebertt.dev"
	})
	require.NotEqual(t, -1, i, "there is no guard")

	match := policies[i].Spec.MatchConstraints

	for _, o := range in.objects {
		for key, value := range match.ObjectSelector.MatchLabels {
			require.Equal(t, value, o.GetLabels()[key], "label %s of %s %s", key, o.GetKind(), o.GetName())
		}

		gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		covered := slices.ContainsFunc(match.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
			return slices.Contains(r.APIGroups, gvr.Group) && slices.Contains(r.Resources, gvr.Resource) &&
				slices.Contains(r.Operations, admissionregistrationv1.Delete)
		})
		require.Equal(t, gvr.Group != admissionregistrationv1.GroupName, covered, "%s %s", o.GetKind(), o.GetName())
	}
}

// TestProblems demands of a Deployment that has nothing all that is looked for.
func TestProblems(t *testing.T) {
	bare := &appsv1.Deployment{}
	pod := &bare.Spec.Template.Spec
	pod.Containers = []corev1.Container{{
		Name: "c", Args: []string{"--shutdown-delay=20s", "--shutdown-grace=10s"},
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}},
	}}
	found := problems(t, bare)
	pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.DoNotSchedule}}
	text := strings.Join(append(found, problems(t, bare)...), "\n")

	for _, want := range []string{
		"Pod Security: runAsNonRoot", "whether it wants the token", "service account of everybody", "nothing spreads",
		"wait rather than share", "killed before its flags let it stop (30s)", "no startup probe", "no liveness probe",
		"no readiness probe", "no request for the processor", "no request for memory", "no limit of memory", "is throttled",
		"no read-only root", "no GOMEMLIMIT",
	} {
		require.Contains(t, text, want)
	}
}

// TestDangling reads an installation in which every reference leads nowhere.
func TestDangling(t *testing.T) {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "n", Name: name} }
	selector := metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	in := &installation{
		deployments: []*appsv1.Deployment{{ObjectMeta: named("d"), Spec: appsv1.DeploymentSpec{Selector: &selector}}},
		services: []*corev1.Service{{ObjectMeta: named("s"), Spec: corev1.ServiceSpec{
			Selector: selector.MatchLabels, Ports: []corev1.ServicePort{{TargetPort: intstr.FromString("p")}},
		}}},
		budgets: []*policyv1.PodDisruptionBudget{{ObjectMeta: named("b"),
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &selector}}},
		bindings: []*rbacv1.RoleBinding{{ObjectMeta: named("r"), RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "x"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "n", Name: "a"}}}},
	}

	require.Equal(t, report{
		"Deployment d: there is no service account n/", "Deployment d: namespace n does not enforce restricted Pod Security",
		"Deployment d does not select its own pods", "Deployment d has 0 PodDisruptionBudgets",
		"PodDisruptionBudget b selects no pods", `Service s: no pod has a port "p"`, "binding r: there is no Role x",
		"binding r: there is no service account n/a",
	}, in.dangling())
}

// TestSkaffoldBuildsWhatChanged: every file that a program is made of makes skaffold build its image, and no file of
// another service does.
func TestSkaffoldBuildsWhatChanged(t *testing.T) {
	artifacts := map[string]artifact{}

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
			require.True(t, a.watches(file), "an edit of %s does not build the image of %s anew", file, name)
		}

		for other := range programs {
			if other != name {
				require.False(t, a.watches(strings.TrimPrefix(programs[other], "./")+"/main.go"),
					"an edit of %s builds the image of %s anew", other, name)
			}
		}
		require.False(t, a.watches("pkg/shard/shard_test.go"), "an edit of a test builds the image of %s anew", name)
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
	services := configs[slices.IndexFunc(configs, func(c config) bool { return c.Metadata.Name == "clusterring" })]
	require.Equal(t, []string{"deploy/base"}, services.Manifests.Kustomize.Paths)
	require.Len(t, services.Profiles, len(overlays))

	var base []string
	for _, a := range services.Build.Artifacts {
		base = append(base, a.Image)
	}

	objects, err := manifests.Combine(root, nil)
	requireImages(t, base, objects, err)

	for _, component := range components {
		objects, err := manifests.Combine(root, nil, filepath.Base(component))
		requireImages(t, base, objects, err)
	}

	for _, p := range services.Profiles {
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

	in := read(t, objects)
	require.NotEmpty(t, in.deployments)

	for _, d := range in.deployments {
		require.Contains(t, images, d.Spec.Template.Spec.Containers[0].Image)
	}
}

// config contains the fields of a document of skaffold.yaml that define artifacts, their files, and the deployed
// directories.
type config struct {
	Metadata  struct{ Name string }
	Build     struct{ Artifacts []artifact }
	Manifests paths
	Profiles  []struct {
		Name      string
		Manifests paths
		Patches   []struct {
			Op, Path string
			Value    artifact
		}
	}
}

// paths lists the directories of kustomizations.
type paths struct{ Kustomize struct{ Paths []string } }

// artifact is an image with its sources.
type artifact struct {
	Image string
	Ko    struct {
		Main         string
		Dependencies struct{ Paths, Ignore []string }
	}
}

func skaffold(t *testing.T) []config {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(root, "skaffold.yaml"))
	require.NoError(t, err)

	documents := strings.Split(string(content), "\n---\n")
	configs := make([]config, len(documents))

	for i, document := range documents {
		require.NoError(t, yaml.Unmarshal([]byte(document), &configs[i]))
	}
	require.Len(t, configs, 2)

	return configs
}

// watches reports whether skaffold rebuilds the image after a change of the file. The path is relative to the root of
// the repository.
func (a *artifact) watches(file string) bool {
	match := func(pattern string) bool { return glob(pattern).MatchString(file) }
	return slices.ContainsFunc(a.Ko.Dependencies.Paths, match) && !slices.ContainsFunc(a.Ko.Dependencies.Ignore, match)
}

// glob translates a pattern to a regular expression: ** matches any number of directories, * anything within a name.
func glob(pattern string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.NewReplacer(`\*\*/`, `(.*/)?`, `\*\*`, `.*`, `\*`, `[^/]*`).
		Replace(regexp.QuoteMeta(pattern)) + "$")
}
