package website_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/website"
)

func TestRender(t *testing.T) {
	got := website.Render(v1alpha1.WebsiteSpec{Title: "Cats & dogs", Body: "<script>"})
	require.Equal(t, map[string]string{website.Page: `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Cats &amp; dogs</title></head>
<body>
<h1>Cats &amp; dogs</h1>
<p>&lt;script&gt;</p>
</body>
</html>
`}, got)
}
