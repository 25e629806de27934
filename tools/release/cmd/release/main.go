// Command release packs the files of a release. make release runs it.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/clusterring/clusterring/tools/release"
)

func main() {
	r := &release.Release{}
	seconds := flag.Int64("time", 0, "time of the commit, in seconds since 1970")

	for value, f := range map[*string][2]string{
		&r.Root:      {"root", "directory of the repository"},
		&r.Version:   {"version", "version of the release"},
		&r.Plugins:   {"plugins", "directory of kubectl-ring for each platform"},
		&r.Images:    {"images", "directory of the SBOMs of the images"},
		&r.Layout:    {"layout", "OCI layout with the images; empty if they are in a registry"},
		&r.Repo:      {"repo", "prefix of the names of images"},
		&r.Downloads: {"downloads", "URL below which releases are published"},
		&r.Out:       {"out", "directory of the results"},
	} {
		flag.StringVar(value, f[0], "", f[1])
	}

	flag.Parse()

	r.Time = time.Unix(*seconds, 0)
	if err := r.Pack(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
