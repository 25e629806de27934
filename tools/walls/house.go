package walls

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// root is the import path of the repository.
const root = "github.com/clusterring/clusterring"

// zone is a directory tree, except the parts that belong to a more specific zone.
type zone struct {
	// dir may end in "/*": then each directory there is a separate zone. It may also be a single file.
	dir string
	// may lists other directories of the repository whose packages the zone may import.
	may []string
	// tests lists directories that only its tests may import.
	tests []string
	// rule describes the rule for people.
	rule string
	// bans lists external packages that it must not import, except in tests.
	bans []ban
	// spares lists import paths that are exempt from the bans.
	spares []string
}

// ban excludes import paths that begin with one of the prefixes, compared by path element.
type ban struct {
	what     string
	prefixes []string
}

var (
	outside = ban{"access to the outside", []string{
		"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "google.golang.org/grpc", "net", "os",
	}}
	clocks = ban{"a clock", []string{"k8s.io/utils/clock", "k8s.io/apimachinery/pkg/util/clock"}}
	logs   = ban{"a log", []string{
		"log", "github.com/go-logr", "go.uber.org/zap", "k8s.io/klog", "sigs.k8s.io/controller-runtime/pkg/log",
	}}
	metrics = ban{"metrics", []string{
		"github.com/prometheus", "k8s.io/component-base/metrics", "go.opentelemetry.io", "expvar",
	}}
	// heavy bans dependencies of tools, because they would raise the versions of dependencies in all importers.
	heavy = ban{"a dependency of the tools", []string{
		"k8s.io/kubernetes", "k8s.io/apiserver", "k8s.io/kubectl", "go.etcd.io/etcd", "github.com/google/cel-go", "cel.dev",
		"sigs.k8s.io/controller-tools", "sigs.k8s.io/controller-runtime/pkg/envtest", "github.com/bufbuild",
		"github.com/golangci", "github.com/fullstorydev/grpcurl", "gotest.tools",
	}}
	testHelp = ban{"a dependency of tests", []string{
		"testing", "github.com/stretchr/testify", "pgregory.net/rapid", "go.uber.org/goleak",
	}}
)

// shared is what the tests of services and of what they share may import.
var shared = []string{"tools/testkit"}

// house is the specification. If several zones match, the most specific one applies.
var house = slices.Concat([]zone{
	{
		dir: "pkg", rule: "pkg is for everyone, so it imports nothing else of this repository",
		bans: []ban{heavy},
	},
	{
		dir: "proto", rule: "proto is for everyone, so it imports nothing else of this repository",
		bans: []ban{heavy, testHelp},
	},
	{
		dir: "services/internal", may: []string{"pkg"}, tests: shared,
		rule: "services/internal imports pkg (its tests also tools/testkit), so that every service can use it",
		bans: []ban{heavy, testHelp},
	},
	{
		dir: "services/*", may: []string{"pkg", "proto", "services/internal"}, tests: shared,
		rule: "a service imports pkg, proto and services/internal (its tests also tools/testkit), and no other service",
		bans: []ban{heavy, testHelp},
	},
	{
		dir: "services/embedded", may: []string{"pkg", "services/internal", "services/leasemonitor", "services/rebalancer"},
		tests: shared,
		rule:  "the embedded sharder imports pkg, services/internal, and the two services that it consists of (its tests also tools/testkit)",
		bans:  []ban{heavy, testHelp},
	},
	{
		dir: "services/ringquery/auth", may: []string{"pkg", "services/internal/quota"}, tests: shared,
		rule: "access to the ring query service imports pkg and quota alone (its tests also tools/testkit)",
		bans: []ban{heavy, testHelp},
		// What aggregated API servers authenticate by.
		spares: []string{"k8s.io/apiserver/pkg/authentication", "k8s.io/apiserver/pkg/server/dynamiccertificates"},
	},
	{
		dir: "services/lab", may: []string{"pkg", "proto", "services/internal", "services/rebalancer", "tools/testkit",
			"tools/example"},
		rule: "the laboratory imports pkg, proto, what it tries out, the test kit and the example; nothing imports the laboratory",
	},
	{
		dir: "services/lab/model",
		may: []string{
			"pkg/apis", "services/internal/admission", "services/internal/key", "services/internal/lease",
			"services/internal/membership",
			"services/internal/plan", "services/internal/resources", "services/internal/hashring", "services/internal/takeover",
		},
		rule: "the model imports pkg/apis, the domain and what decides (admission, takeover) alone",
		bans: []ban{heavy, testHelp},
	},
	{
		dir: "services/lab/simulation",
		may: []string{
			"pkg/apis", "services/internal/admission", "services/internal/lease", "services/internal/membership",
			"services/internal/resources", "services/internal/hashring", "services/internal/takeover",
			"services/rebalancer/engine", "services/rebalancer/feed", "services/rebalancer/placement",
		},
		rule: "the simulation imports pkg/apis, the domain, what decides (admission, takeover), and the rebalancer's engine with what it is given",
		bans: []ban{heavy, testHelp},
	},
	{
		dir: "tools", may: []string{"pkg", "proto", "tools"},
		rule: "tools import pkg, proto and tools; they use the services' binaries, never their code",
	},
	{
		dir: "tools/testkit", rule: "the test kit knows nothing of the product, so that everything can be tested with it",
	},
	{
		dir: "tools/example", may: []string{"pkg", "services/embedded",
			"tools/testkit/history"}, tests: []string{"tools/testkit"},
		rule: "the example imports pkg and services/embedded, as its readers would, and testkit/history (its tests also the rest of tools/testkit)",
		bans: []ban{heavy, testHelp},
	},
}, pure(
	"clusterring/fence.go", "clusterring/sharder.go", "clusterring/waiting.go",
	"key", "hashring", "invariants", "lease", "membership", "plan",
))

// pure returns the zones of the domain, which makes decisions without clients, clocks, and logs.
func pure(names ...string) []zone {
	domain := []string{"pkg/apis"}
	for _, name := range names {
		domain = append(domain, "services/internal/"+name)
	}

	var zones []zone
	for _, name := range names {
		zones = append(zones, zone{
			dir: "services/internal/" + name, may: domain, tests: []string{"tools/testkit/transcript"},
			rule: "the domain imports pkg/apis and the domain (" + strings.Join(names, ", ") +
				") alone (its tests also tools/testkit/transcript)",
			bans: []ban{outside, clocks, logs, metrics, heavy, testHelp},
		})
	}

	return zones
}

// zoneOf returns the most specific zone of a directory or file, and the matching directory or file.
func zoneOf(name string) (z zone, at string, ok bool) {
	for _, candidate := range house {
		match, matches := within(name, candidate.dir)
		if matches && len(candidate.dir) > len(z.dir) {
			z, at, ok = candidate, match, true
		}
	}

	return z, at, ok
}

// within reports whether dir is pattern or below it, and the part of dir that is the pattern.
func within(dir, pattern string) (match string, ok bool) {
	parent, wildcard := strings.CutSuffix(pattern, "/*")
	if !wildcard {
		return pattern, under(dir, pattern)
	}

	rest, ok := strings.CutPrefix(dir, parent+"/")
	if !ok {
		return "", false
	}

	name, _, _ := strings.Cut(rest, "/")

	return parent + "/" + name, true
}

// under reports whether the path is the prefix, or continues it with a slash.
func under(path, prefix string) bool {
	return strings.HasPrefix(path+"/", prefix+"/")
}

func checkImports(f file) []Violation {
	z, at, ok := zoneOf(f.name)
	if !ok {
		return []Violation{{
			f.name, f.line, fmt.Sprintf("directory %s is in no zone: add it to tools/walls/house.go", path.Dir(f.name)),
		}}
	}

	var found []Violation

	for _, i := range f.imports {
		if problem := problemOf(z, at, f.test, i.path); problem != "" {
			found = append(found, Violation{f.name, i.line, problem})
		}
	}

	return found
}

// problemOf returns the problem of an import by a file of the zone, empty if there is none.
func problemOf(z zone, at string, test bool, importPath string) string {
	dir, own := strings.CutPrefix(importPath, root+"/")
	if !own {
		return banned(z, at, test, importPath)
	}

	if under(dir, at) {
		return ""
	}

	allowed := z.may
	if test {
		allowed = slices.Concat(z.may, z.tests)
	}

	_, _, known := zoneOf(dir)
	if known && slices.ContainsFunc(allowed, func(a string) bool { return under(dir, a) }) {
		return ""
	}

	return fmt.Sprintf("%s imports %s: %s", at, dir, z.rule)
}

func banned(z zone, at string, test bool, importPath string) string {
	if test || slices.ContainsFunc(z.spares, func(path string) bool { return under(importPath, path) }) {
		return ""
	}

	for _, b := range z.bans {
		if slices.ContainsFunc(b.prefixes, func(prefix string) bool { return under(importPath, prefix) }) {
			return fmt.Sprintf("%s imports %s, which is %s: not outside of tests", at, importPath, b.what)
		}
	}

	return ""
}
