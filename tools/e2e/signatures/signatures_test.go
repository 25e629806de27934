package signatures_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSignatures: the signature of each image, of each of its platforms, and of each SBOM is that of the key. Another
// key, and an image that was changed, are refused.
func TestSignatures(t *testing.T) {
	list := os.Getenv("SIGNED_IMAGES")
	if list == "" {
		t.Skip("SIGNED_IMAGES is not set: make test-signatures runs this")
	}

	content, err := os.ReadFile(list)
	require.NoError(t, err)

	images := strings.Fields(string(content))
	require.NotEmpty(t, images)

	for _, image := range images {
		repository, digest, found := strings.Cut(image, "@")
		require.True(t, found, "%s has no digest", image)

		name := repository[strings.LastIndexByte(repository, '/')+1:]
		t.Run(name, func(t *testing.T) {
			for _, digest := range append(platforms(t, image), digest) {
				verified(t, repository+"@"+digest)
				described(t, repository+"@"+digest)
			}
		})
	}

	t.Run("AnotherKey", func(t *testing.T) {
		refused(t, "accepted signatures do not match threshold", "verify", "--key", key("other"), images[0])
		refused(t, "accepted signatures do not match threshold", "verify-attestation", "--type", "spdxjson", "--key",
			key("other"), images[0])
	})
	t.Run("ChangedImage", func(t *testing.T) {
		repository, digest, _ := strings.Cut(images[0], "@")
		if p := platforms(t, images[0]); len(p) > 0 {
			digest = p[0]
		}

		changed := strings.TrimSpace(run(t, exec.Command(os.Getenv("SIGNED_CRANE"), "mutate", "--annotation", "changed=yes",
			repository+"@"+digest)))
		require.Contains(t, changed, "@sha256:")
		require.NotContains(t, changed, digest)
		refused(t, "no signatures found", "verify", "--key", key("cosign"), changed)
		refused(t, "attestations", "verify-attestation", "--type", "spdxjson", "--key", key("cosign"), changed)
	})
}

// verified requires that the key has signed the image.
func verified(t *testing.T, image string) {
	t.Helper()
	run(t, cosign("verify", "--key", key("cosign"), image))
}

// described requires that the key has signed an SBOM of exactly this image, which lists packages.
func described(t *testing.T, image string) {
	t.Helper()

	var envelope struct{ Payload []byte }
	require.NoError(t,
		json.Unmarshal([]byte(run(t, cosign("verify-attestation", "--type", "spdxjson", "--key", key("cosign"), image))),
			&envelope))

	var statement struct {
		Subject   []struct{ Digest map[string]string }
		Predicate struct {
			Name     string
			Packages []struct{ Name string }
		}
	}
	require.NoError(t, json.Unmarshal(envelope.Payload, &statement))

	_, digest, _ := strings.Cut(image, "@")
	require.Len(t, statement.Subject, 1)
	require.Equal(t, digest, "sha256:"+statement.Subject[0].Digest["sha256"])
	require.Equal(t, "sbom-"+digest, statement.Predicate.Name)
	require.NotEmpty(t, statement.Predicate.Packages)
}

// platforms returns the digests of the image's platforms; none if it is for one platform and has no index.
func platforms(t *testing.T, image string) []string {
	t.Helper()

	var index struct{ Manifests []struct{ Digest string } }
	require.NoError(t, json.Unmarshal([]byte(run(t, exec.Command(os.Getenv("SIGNED_CRANE"), "manifest", image))), &index))

	digests := make([]string, 0, len(index.Manifests))
	for _, m := range index.Manifests {
		digests = append(digests, m.Digest)
	}

	return digests
}

func key(name string) string { return filepath.Join(os.Getenv("SIGNED_KEYS"), name+".pub") }

// cosign verifies without the transparency log, in which the images are not.
func cosign(args ...string) *exec.Cmd {
	return exec.Command(os.Getenv("SIGNED_COSIGN"), append(args, "--insecure-ignore-tlog")...)
}

// run returns the standard output.
func run(t *testing.T, command *exec.Cmd) string {
	t.Helper()

	var stderr bytes.Buffer

	command.Stderr = &stderr
	output, err := command.Output()
	require.NoError(t, err, "%s\n%s", command, &stderr)

	return string(output)
}

// refused requires that cosign fails for the reason.
func refused(t *testing.T, reason string, args ...string) {
	t.Helper()

	output, err := cosign(args...).CombinedOutput()
	require.Error(t, err, "%s\n%s", args, output)
	require.Contains(t, string(output), reason)
}
