package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/clusterring/clusterring/tools/dev/toolcache"
)

// pins is the directory of the files that pin tools. Each has the format of a go.mod, for the go command's flag -modfile.
const pins = "pins"

// major finds the major version at the end of an import path. Like the go command, the name of a program leaves it out.
var major = regexp.MustCompile(`/v[2-9]\d*$`)

// tool is a pinned program.
type tool struct {
	name    string // of the file and of the executable
	modfile string
	pkg     string // what to build
	version string // of the module that pkg comes from
}

// discover reads the tools below root, sorted by name.
func discover(ctx context.Context, root string) ([]tool, error) {
	files, err := filepath.Glob(filepath.Join(root, pins, "*.mod"))
	if err != nil {
		return nil, fmt.Errorf("look for tools: %w", err)
	}

	if len(files) == 0 {
		return nil, fmt.Errorf("no tools in %s: run this command in tools/dev", root)
	}

	var tools []tool

	for _, file := range files {
		t, err := readTool(ctx, file)
		if err != nil {
			return nil, err
		}

		tools = append(tools, t)
	}

	return tools, nil
}

func readTool(ctx context.Context, file string) (tool, error) {
	output, err := exec.CommandContext(ctx, "go", "mod", "edit", "-json", file).Output()
	if err != nil {
		return tool{}, fmt.Errorf("read %s: %w", file, err)
	}

	var module struct {
		Tool    []struct{ Path string }
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(output, &module); err != nil {
		return tool{}, fmt.Errorf("read %s: %w", file, err)
	}

	name := strings.TrimSuffix(filepath.Base(file), ".mod")
	if len(module.Tool) != 1 || path.Base(major.ReplaceAllString(module.Tool[0].Path, "")) != name {
		return tool{}, fmt.Errorf("%s must have one tool directive, for a package named %s", file, name)
	}

	t := tool{name: name, modfile: filepath.ToSlash(file), pkg: module.Tool[0].Path}

	longest := ""
	for _, r := range module.Require { // a package belongs to the module with the longest matching path
		if strings.HasPrefix(t.pkg+"/", r.Path+"/") && len(r.Path) > len(longest) {
			longest, t.version = r.Path, r.Version
		}
	}

	if t.version == "" {
		return tool{}, fmt.Errorf("%s requires no module that contains %s: run make tidy", file, t.pkg)
	}

	return t, nil
}

// ensure returns the path of the tool's executable.
func ensure(ctx context.Context, name string, tools []tool, builder *toolcache.Builder) (string, error) {
	i := slices.IndexFunc(tools, func(t tool) bool { return t.name == name })
	if i < 0 {
		return "", fmt.Errorf("unknown tool %q: -list prints all tools", name)
	}

	t := tools[i]
	// Tools read their version from these variables. The linker ignores variables that a tool does not have.
	number := strings.TrimPrefix(t.version, "v")
	stamps := "-X main.version=" + number + " -X main.date=pinned -X sigs.k8s.io/controller-tools/pkg/version.version=" + t.version
	dir, err := builder.Build(ctx, toolcache.Program{
		Name: "tools/" + t.name, Version: t.version, Module: ".", Modfile: t.modfile, Package: t.pkg, Binary: t.name, LDFlags: stamps,
	})

	return filepath.Join(dir, t.name), err
}
