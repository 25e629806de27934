module github.com/clusterring/clusterring/tools/localplane

go 1.26.0
