// Package manifests finds problems in the manifests of deploy/ and in skaffold.yaml.
//
// It builds kustomizations as kubectl does, and checks the result: every pod conforms to the restricted Pod Security
// Standard, and has probes, resource requests, and enough time to stop; references by name or label are valid. Its
// tests check every kustomization of the repository, run the programs to verify their flags, and keep the generated
// parts of docs up to date (go test -update): tables of flags, and docs/proofs.md from docs/proofs.txt.
package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// building is held while kustomize builds: it reads its schemas once, without a lock.
var building sync.Mutex

func build(dir string, options *krusty.Options) (resmap.ResMap, error) {
	building.Lock()
	defer building.Unlock()

	built, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("build the kustomization in %s: %w", dir, err)
	}

	return built, nil
}

// Text returns what `kubectl kustomize` prints of a directory, in the order in which `kubectl apply -k` creates it. It
// is safe for concurrent use.
func Text(dir string) (string, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy

	built, err := build(dir, options)
	if err != nil {
		return "", err
	}

	text, err := built.AsYaml()
	if err != nil {
		return "", fmt.Errorf("print the kustomization in %s: %w", dir, err)
	}

	return string(text), nil
}

// Build returns the objects of the kustomization in a directory, as `kubectl kustomize` prints them. It is safe for
// concurrent use.
func Build(dir string) ([]*unstructured.Unstructured, error) {
	built, err := build(dir, krusty.MakeDefaultOptions())
	if err != nil {
		return nil, err
	}

	objects := make([]*unstructured.Unstructured, 0, built.Size())
	for _, resource := range built.Resources() {
		content, err := resource.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("build the kustomization in %s: %w", dir, err)
		}

		object := &unstructured.Unstructured{}
		if err := json.Unmarshal(content, &object.Object); err != nil {
			return nil, fmt.Errorf("build the kustomization in %s: %w", dir, err)
		}

		objects = append(objects, object)
	}

	return objects, nil
}

// Combine returns the objects of deploy/base below root with components of deploy/components, as a user's kustomization
// combines them. The images replace those of the base: each is an entry of the images of a kustomization.
func Combine(root string, images []map[string]string,
	components ...string) (objects []*unstructured.Unstructured, err error) {
	deploy, err := filepath.Abs(filepath.Join(root, "deploy"))
	if err != nil {
		return nil, fmt.Errorf("find the manifests: %w", err)
	}

	dir, err := os.MkdirTemp("", "combine-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for a kustomization: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	// Paths in a kustomization are relative, and without links.
	relative := func(path string) string {
		from, _ := filepath.EvalSymlinks(dir)
		to, _ := filepath.EvalSymlinks(deploy)
		found, _ := filepath.Rel(from, filepath.Join(to, path)) // an error shows when it is built

		return found
	}

	k := map[string]any{"images": images, "resources": []string{relative("base")}}

	var found []string
	for _, component := range components {
		found = append(found, relative(filepath.Join("components", component)))
	}

	k["components"] = found

	content, err := json.Marshal(k)
	if err != nil {
		return nil, fmt.Errorf("write a kustomization: %w", err)
	}

	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600); err != nil {
		return nil, fmt.Errorf("write a kustomization: %w", err)
	}

	return Build(dir)
}

// Find returns the sorted directories below root that contain a kustomization, except components, which cannot be built
// alone.
func Find(root string) ([]string, error) {
	var found []string

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "components":
			return filepath.SkipDir
		case entry.Name() == "kustomization.yaml":
			found = append(found, filepath.Dir(path))
		}

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find kustomizations: %w", err)
	}
	slices.Sort(found)

	return found, nil
}

// Problems returns the problems of the pods of a Deployment, one sentence each.
func Problems(d *appsv1.Deployment) ([]string, error) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("prepare the checks of Pod Security: %w", err)
	}

	var r report

	pod := &d.Spec.Template
	spec := &pod.Spec

	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for _, result := range evaluator.EvaluatePod(restricted, &pod.ObjectMeta, spec) {
		r.problem(!result.Allowed, "Pod Security: %s (%s)", result.ForbiddenReason, result.ForbiddenDetail)
	}

	r.problem(spec.AutomountServiceAccountToken == nil,
		"the pod does not say whether it wants the token of its service account")
	r.problem(spec.ServiceAccountName == "", "the pod has the service account of everybody")
	r.problem(len(spec.TopologySpreadConstraints) == 0, "nothing spreads the pods over nodes")

	for _, c := range spec.TopologySpreadConstraints {
		r.problem(c.WhenUnsatisfiable != corev1.ScheduleAnyway, "pods wait rather than share a node")
	}

	for i := range spec.Containers {
		c := &spec.Containers[i]
		takes := duration(c, "--shutdown-delay") + duration(c, "--shutdown-grace")
		grace := time.Duration(ptr.Deref(spec.TerminationGracePeriodSeconds, 0)) * time.Second
		r.problem(grace <= takes, "the pod is killed before its flags let it stop (%s)", takes)
		r.container(c)
	}

	return r.found, nil
}

// report collects problems.
type report struct{ found []string }

func (r *report) problem(is bool, format string, args ...any) {
	if is {
		r.found = append(r.found, fmt.Sprintf(format, args...))
	}
}

// container reports the problems of a container.
func (r *report) container(c *corev1.Container) {
	missing := func(is bool, what string) { r.problem(is, "container %s has no %s", c.Name, what) }
	missing(c.StartupProbe == nil, "startup probe")
	missing(c.LivenessProbe == nil, "liveness probe")
	missing(c.ReadinessProbe == nil, "readiness probe")
	missing(c.Resources.Requests.Cpu().IsZero(), "request for the processor")
	missing(c.Resources.Requests.Memory().IsZero(), "request for memory")
	missing(c.Resources.Limits.Memory().IsZero(), "limit of memory")
	missing(c.SecurityContext == nil || !ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false),
		"read-only root file system")
	r.problem(!c.Resources.Limits.Cpu().IsZero(),
		"container %s is throttled by a limit of the processor, and renews Leases too late", c.Name)
	missing(!slices.ContainsFunc(c.Env, func(env corev1.EnvVar) bool {
		return env.Name == "GOMEMLIMIT" && env.ValueFrom != nil && env.ValueFrom.ResourceFieldRef != nil &&
			env.ValueFrom.ResourceFieldRef.Resource == "limits.memory"
	}), "GOMEMLIMIT from its limit of memory")
}

// duration returns the value of a duration flag in a container's arguments, 0 if it is not set.
func duration(c *corev1.Container, flag string) time.Duration {
	var d time.Duration

	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, flag+"="); ok {
			d, _ = time.ParseDuration(value) // the program rejects invalid values
		}
	}

	return d
}

// Config contains the fields of a skaffold.yaml document that define artifacts, their files, and the deployed
// directories.
type Config struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Build struct {
		Artifacts []Artifact `json:"artifacts"`
	} `json:"build"`
	Manifests ManifestPaths `json:"manifests"`
	Profiles  []struct {
		Name      string        `json:"name"`
		Manifests ManifestPaths `json:"manifests"`
		Patches   []struct {
			Op    string   `json:"op"`
			Path  string   `json:"path"`
			Value Artifact `json:"value"`
		} `json:"patches"`
	} `json:"profiles"`
}

// ManifestPaths lists the directories of kustomizations.
type ManifestPaths struct {
	Kustomize struct {
		Paths []string `json:"paths"`
	} `json:"kustomize"`
}

// Artifact is an image with its sources.
type Artifact struct {
	Image string `json:"image"`
	Ko    struct {
		Main         string `json:"main"`
		Dependencies struct {
			Paths  []string `json:"paths"`
			Ignore []string `json:"ignore"`
		} `json:"dependencies"`
	} `json:"ko"`
}

// ReadSkaffold returns the documents of a skaffold.yaml.
func ReadSkaffold(content []byte) ([]Config, error) {
	var configs []Config

	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var c Config
		if err := yaml.Unmarshal([]byte(document), &c); err != nil {
			return nil, fmt.Errorf("read skaffold.yaml: %w", err)
		}

		configs = append(configs, c)
	}

	return configs, nil
}

// Watches reports whether skaffold rebuilds the image after a change of the file. The path is relative to the root of
// the repository.
func (a *Artifact) Watches(file string) bool {
	match := func(pattern string) bool { return glob(pattern).MatchString(file) }
	return slices.ContainsFunc(a.Ko.Dependencies.Paths, match) && !slices.ContainsFunc(a.Ko.Dependencies.Ignore, match)
}

// glob translates a pattern to a regular expression: ** matches any number of directories, * anything within a name.
func glob(pattern string) *regexp.Regexp {
	quoted := regexp.QuoteMeta(pattern)
	quoted = strings.ReplaceAll(quoted, `\*\*/`, `(.*/)?`)
	quoted = strings.ReplaceAll(quoted, `\*\*`, `.*`)
	quoted = strings.ReplaceAll(quoted, `\*`, `[^/]*`)

	return regexp.MustCompile("^" + quoted + "$")
}
