"""What is known of every data set: files with checksums, source, licence, outcome and protected columns.

A new data set is one entry in :data:`REGISTRY`, one loader in a file of its own, and one line in ``catalogue.py``.
A data set may need several files (a table and arrays that run over the same rows): list them all in ``files``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Family: TypeAlias = Literal["gaussian", "binomial", "poisson"]


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a data set.

    Attributes
    ----------
    path : str
        Where the file is, relative to ``$SETSQUARE_DATA`` and to the user's cache, with forward slashes.
    sha256 : str
        The checksum of the file; empty where none may be published (data that need credentials).
    origin : str
        How to come by the file, as the end of a sentence.
    urls : tuple of str
        Public addresses of exactly this file, the first one tried first; empty where none is known.
    alternatives : tuple of DataFile
        Files that hold the same data in another format; any of them will do.
    """

    path: str
    sha256: str
    origin: str
    urls: tuple[str, ...] = ()
    alternatives: tuple[DataFile, ...] = ()

    @property
    def candidates(self) -> tuple[DataFile, ...]:
        """The file itself, then its alternatives."""
        return (self, *self.alternatives)


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What is known of a data set without reading it; ``print`` shows it in a readable form.

    Attributes
    ----------
    name, title : str
        The name that :func:`setsquare.datasets.load` takes, and one line on what the data are.
    outcome : str
        The column to predict.
    protected : tuple of str
        The protected columns, in the order of the paper's tables.
    family : {"gaussian", "binomial", "poisson"}
        The family of the outcome.
    n_rows : int
        Rows that the loader returns by default.
    source, licence : str
        Where the data come from, and on what terms.
    files : tuple of DataFile
        All files that are needed; empty where the data ship inside a dependency.
    """

    name: str
    title: str
    outcome: str
    protected: tuple[str, ...]
    family: Family
    n_rows: int
    source: str
    licence: str
    files: tuple[DataFile, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the checksums as a plain dict of strings, numbers and lists."""
        return {
            "name": self.name,
            "title": self.title,
            "outcome": self.outcome,
            "protected": list(self.protected),
            "family": self.family,
            "n_rows": self.n_rows,
            "source": self.source,
            "licence": self.licence,
            "files": [file.path for file in self.files],
        }

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.title}"]
        lines += [f"  outcome    {self.outcome} ({self.family}), {self.n_rows} rows"]
        lines += [f"  protected  {', '.join(self.protected)}"]
        lines += [f"  source     {self.source}", f"  licence    {self.licence}"]
        return "\n".join(lines)


def _fairml(table: str, sha256: str) -> DataFile:
    """Describe a table of the R package fairml, saved as Parquet."""
    return DataFile(
        path=f"fairml/{table}.parquet",
        sha256=sha256,
        origin=f'in R, data("{table}", package = "fairml"); '
        f'arrow::write_parquet({table}, "{table}.parquet") makes it from fairml 0.8 (load it with verify=False)',
    )


def _mimic(split: str) -> tuple[DataFile, ...]:
    """Describe the table and the embeddings of one split of MIMIC-CXR; whoever has access makes them."""
    parts = {
        "meta.csv": "MIMIC-CXR-JPG and MIMIC-IV (age, sex, race, Pleural Effusion; a row for each image)",
        "emb.npy": "https://doi.org/10.13026/pxc2-vx69 (1376 numbers in single precision for each row of the table)",
    }
    origin = "it is made by those who have credentialed access to"
    return tuple(DataFile(f"mimic/mimic_cfm_{split}_{end}", "", f"{origin} {where}") for end, where in parts.items())


_ADULT_RAW = DataFile(
    path="adult_uci/adult.data",
    sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    origin="it is the training file adult.data of the UCI archive",
    urls=("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/adult.data",),
)
_ADULT_PARQUET = DataFile(
    path="adult_uci/adult_uci_train.parquet",
    sha256="0e2bb1ad187bf9035b1f224c4e11f28df92e05b0f10ac76ad16ff211caf327ab",
    origin="it is the training file adult.data of the UCI archive, saved as Parquet",
    alternatives=(_ADULT_RAW,),
)

_ENTRIES = (
    DatasetInfo(
        name="adult",
        title="income above 50k in the US census of 1994, education levels collapsed, complete rows",
        outcome="income",
        protected=("race", "sex"),
        family="binomial",
        n_rows=30162,
        source="R package fairml 0.8; UCI Adult",
        licence="fairml is under MIT; UCI Adult under CC BY 4.0",
        files=(_fairml("adult", "5bf78568c514fab605d986470aade3a05b5af094ad6b04e783531151fdd3f04e"),),
    ),
    DatasetInfo(
        name="adult_uci",
        title='income above 50k in the US census of 1994, the raw training file with "?" as a level',
        outcome="income",
        protected=("race", "sex"),
        family="binomial",
        n_rows=32561,
        source="UCI Machine Learning Repository, Adult, https://doi.org/10.24432/C5XW20",
        licence="CC BY 4.0",
        files=(_ADULT_PARQUET,),
    ),
    DatasetInfo(
        name="bank",
        title="subscription to a term deposit after calls of a Portuguese bank",
        outcome="subscribed",
        protected=("age",),
        family="binomial",
        n_rows=40195,
        source="R package fairml 0.8; UCI Bank Marketing",
        licence="fairml is under MIT; the data under the terms of the UCI repository",
        files=(_fairml("bank", "f71ade7f8ae15e5f2b6c958b79b429009e3272466b303d8ee127894514141d6a"),),
    ),
    DatasetInfo(
        name="colored_mnist",
        title="a handwritten 0 or 9, where red gives the 0 away in training and no test image is red",
        outcome="digit",
        protected=("red",),
        family="binomial",
        n_rows=13861,
        source="MNIST, LeCun, Cortes and Burges; coloured as in Rügamer et al. (2024)",
        licence="MNIST is under CC BY-SA 3.0",
        files=(
            DataFile(
                path="mnist/mnist_0_9.npz",
                sha256="20439de3581e5053071c4bc10b9c74ba74bdba0a34cef86c7d37dffd3b2b413b",
                origin="numpy.savez_compressed makes it from the 0s and 9s of MNIST in order, as bytes named x_train, "
                "y_train, x_test and y_test (load it with verify=False)",
            ),
        ),
    ),
    DatasetInfo(
        name="compas",
        title="recidivism within two years in Broward County, Florida",
        outcome="two_year_recid",
        protected=("sex", "race"),
        family="binomial",
        n_rows=5855,
        source="R package fairml 0.8; ProPublica",
        licence="fairml is under MIT; the data were published by ProPublica",
        files=(_fairml("compas", "ab7ce4cf2097043254f11cf41a95ec659e28471ca1e4d08899146a4058b7d6f9"),),
    ),
    DatasetInfo(
        name="diabetes",
        title="disease progression one year after baseline in 442 patients",
        outcome="progression",
        protected=("age", "sex"),
        family="gaussian",
        n_rows=442,
        source="Efron et al. (2004), Least Angle Regression; ships inside scikit-learn",
        licence="scikit-learn is under BSD-3-Clause; the authors state no terms for the data",
    ),
    DatasetInfo(
        name="health_retirement",
        title="number of dependencies in daily activities in the Health and Retirement Study, complete rows",
        outcome="score",
        protected=("age", "gender", "marriage", "race"),
        family="poisson",
        n_rows=12766,
        source="R package fairml 0.8; Health and Retirement Study, University of Michigan",
        licence="own terms of the Health and Retirement Study: never pass the data on",
        files=(_fairml("health.retirement", "3cc9b4a5129b3bb3864fa0cc4d4cfe3d2f50b4ef31beaa41a4c9505332a15451"),),
    ),
    DatasetInfo(
        name="mimic_chest_xrays",
        title="pleural effusion in embeddings of the chest X-rays of MIMIC-CXR",
        outcome="Pleural Effusion",
        protected=("sex", "age", "race"),
        family="binomial",
        n_rows=184383,
        source="Sellergren et al. (2022), https://doi.org/10.13026/pxc2-vx69; labels of MIMIC-CXR-JPG and MIMIC-IV",
        licence="PhysioNet credentialed health data licence: never pass the data on",
        files=(*_mimic("train"), *_mimic("test")),
    ),
    DatasetInfo(
        name="movies",
        title="number of votes that a movie got, from its description",
        outcome="votes",
        protected=("actor", "director"),
        family="poisson",
        n_rows=42705,
        source='Kaggle "The Movies Dataset", from TMDB; words of Rügamer et al. (2024); embedded for this library',
        licence="terms of TMDB: never pass the data on",
        files=(
            DataFile(
                path="movies/movies_full.parquet",
                sha256="293db47c2a72c69b1550ffb8870c4dbb44901e38a0916bc28719147eeb372e19",
                origin="it holds cleaned descriptions, votes, genders and the paper's split of The Movies Dataset",
            ),
            DataFile(
                path="movies/authors_words.csv.gz",
                sha256="bb745387bb3229b2173dacd05509dbd49485a2aa06385230086ccb79a6511041",
                origin="it holds the authors' 10 000 words with their ranks, as word and id",
            ),
            DataFile(
                path="movies/movies_full_minilm_pca100.npz",
                sha256="b476f97e45e6f5651c60cb09763bb25dbfd9ad1a3a1d4007684c8bfbf0abe43c",
                origin="it holds 100 principal components of all-MiniLM-L6-v2, in half precision as emb",
            ),
        ),
    ),
    DatasetInfo(
        name="nih_chest_xrays",
        title="effusion in an embedding of chest X-rays, several images of a patient; stands in for MIMIC-CXR",
        outcome="Effusion",
        protected=("age", "sex"),
        family="binomial",
        n_rows=7060,
        source="NIH Clinical Center, ChestX-ray14, Wang et al. (2017); embedded for this library",
        licence="open, with attribution to the NIH Clinical Center",
        files=(
            DataFile(
                path="cxr/nih_subset_meta.parquet",
                sha256="2680ec99d1500960dc39be64d19017d4239eea6cbe9082616f68df87bc1b84b2",
                origin="it holds labels, patient and split of 7060 images of ChestX-ray14",
            ),
            DataFile(
                path="cxr/nih_subset_efficientnet_pca256.npz",
                sha256="b83094055a8f79bc57edfc1a0fd7ae7487d60e24b3a206e5379db2f6ea8161ef",
                origin="it holds 256 principal components of EfficientNet-lite0, in half precision as emb",
            ),
        ),
    ),
    DatasetInfo(
        name="utkface",
        title="sex in embeddings of faces, by face recognition and by ImageNet",
        outcome="sex",
        protected=("age", "race"),
        family="binomial",
        n_rows=20643,
        source="UTKFace, Zhang, Song and Qi (2017); embedded for this library",
        licence="non-commercial research only: never pass the data on",
        files=(
            DataFile(
                path="utkface/utkface_meta.parquet",
                sha256="da38c6908a78c665e0a4cbd5189e71ea884c36bc15f03d454c82878b7bb44405",
                origin="it holds the labels in the file names of UTKFace, and a split",
            ),
            DataFile(
                path="utkface/utkface_face128.npz",
                sha256="fc61744a3205a31bc96f15918630d16e961f4b247a0aa2161b663fdf9d11a1a2",
                origin="it holds 128 features of a face-recognition network, in half precision as emb",
            ),
            DataFile(
                path="utkface/utkface_efficientnet_pca128.npz",
                sha256="ac485d7bab19b3f91edf57c0d35fa56ba00d5f91849eda0c38533b5fd5772965",
                origin="it holds 128 principal components of EfficientNet-lite0 of the faces, in half precision as emb",
            ),
        ),
    ),
)

#: Every data set by name.
REGISTRY: dict[str, DatasetInfo] = {entry.name: entry for entry in _ENTRIES}
